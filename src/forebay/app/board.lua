-- Tells all boards what one of them says, and says who deals out the places that machines share.
--
-- KEYS[1] is the prefix of all keys, with a hash tag.  ARGV[1] is the name of whoever calls (16 characters), a
-- character (`+`: it goes on, `-`: it ends), and what it says.  PREFIX:dealer holds the name of the machine that
-- deals; it goes by itself when that says nothing any more.

local LEASE_MS = 2000

local key, call = KEYS[1] .. ':dealer', ARGV[1]
local name, goes_on = string.sub(call, 1, 16), string.sub(call, 17, 17) == '+'
local dealer = redis.call('GET', key)
if not goes_on then
  if dealer == name then
    redis.call('DEL', key)
  end
elseif not dealer or dealer == name then
  redis.call('SET', key, name, 'PX', LEASE_MS)
  dealer = name
end
redis.call('PUBLISH', KEYS[1] .. ':board', string.sub(call, 18))
return dealer or ''
