-- Lends units of limits to the workers of many machines: `policy/lending.py` over keys that all of them share.
-- `quota_meter.lua` and `quota_known.lua` stand before it.
--
-- KEYS[1] is the prefix of all keys, with a hash tag, so that they lie in one slot of a cluster.  ARGV[1] is a
-- call in MessagePack, as `quota_script.py` makes it.  Keys: PREFIX:meta (since when, how long it has been up),
-- PREFIX:seen (workers by when they were last seen), PREFIX:planes (control planes alike), PREFIX:held:WORKER
-- (limits of which it has loans), PREFIX:limit:ID (what is left, and who took how much), PREFIX:lent:ID (by
-- worker), PREFIX:told:WORKER (the number of the last debts that it has told of).  All but the first three go by
-- themselves once they matter no more.

local SPARE_PARTS = 4          -- as in `lending.py`
local SETTLE_US = 500000       -- after the first call ever, for workers to say what they hold
local MEMBER_US = 5000000      -- a worker that was not seen for so long is gone
local TICK_MAX_US = 2000000    -- more than this between two ticks is time in which this server was away
local EXPIRED_MAX = 200        -- workers that one tick takes leave of
local LOOKED_AT = 3            -- of what a worker holds, for each that is added, to see whether it is gone

-- A worker may hold loans of many limits in its life; those that are gone are forgotten bit by bit.
local function forget_gone(worker)
  for _, id in ipairs(redis.call('SRANDMEMBER', prefix .. ':held:' .. worker, LOOKED_AT)) do
    if redis.call('HLEN', prefix .. ':lent:' .. id) == 0 then
      redis.call('SREM', prefix .. ':held:' .. worker, id)
    end
  end
end

local function set_lent(id, worker, units)
  if units > 0 then
    redis.call('HSET', prefix .. ':lent:' .. id, worker, write(units))
    if redis.call('SADD', prefix .. ':held:' .. worker, id) == 1 then
      forget_gone(worker)
    end
  else
    redis.call('HDEL', prefix .. ':lent:' .. id, worker)
    redis.call('SREM', prefix .. ':held:' .. worker, id)
  end
end

local function get_lent(id, worker)
  return tonumber(redis.call('HGET', prefix .. ':lent:' .. id, worker) or 0)
end

local function leave(worker)
  for _, id in ipairs(redis.call('SMEMBERS', prefix .. ':held:' .. worker)) do
    local meter, lent = read_meter(id), get_lent(id, worker)
    redis.call('HDEL', prefix .. ':lent:' .. id, worker)
    if meter and meter.kind == 'places' then
      give(meter, lent)
      save(meter)
    end
  end
  redis.call('DEL', prefix .. ':held:' .. worker)
  redis.call('ZREM', prefix .. ':seen', worker)
end

-- Microseconds for which this server has been up and some control plane too.
local function read_uptime()
  return tonumber(redis.call('HGET', prefix .. ':meta', 'up') or 0)
end

-- How long until it lends: it knows nobody's places right after the first call.
local function compute_settling()
  local born = redis.call('HGET', prefix .. ':meta', 'born')
  if not born then
    redis.call('HSET', prefix .. ':meta', 'born', write(now))
    born = now
  end
  local passed = now - tonumber(born)
  return passed >= 0 and math.max(0, SETTLE_US - passed) or 0  -- or the clock has gone back
end

-- Whether the periods that came with the call are of this server's time.
local function has_periods(limits)
  for _, array in ipairs(limits) do
    if array[2] == 'calendar' and not find_period(read_limit(array)) then
      return false
    end
  end
  return true
end

local function list_holders(id, worker)
  local holders, lent = {}, redis.call('HGETALL', prefix .. ':lent:' .. id)
  for at = 1, #lent, 2 do
    if lent[at] ~= worker then
      holders[#holders + 1] = lent[at]
    end
  end
  return holders
end

local function save_changed(meters)
  local states = {}
  for at, meter in ipairs(meters) do
    if meter.is_changed then
      save(meter)
    end
    states[at] = describe(meter)
  end
  return states
end

local operations = {}

-- {worker, is_final, {limit…}, {need…}, {like…}}: all or none.
function operations.ask(worker, is_final, limits, needs, likes)
  local settling = compute_settling()
  if settling > 0 then
    return {'early', settling}
  elseif not redis.call('ZSCORE', prefix .. ':seen', worker) then
    return {'stranger'}
  end
  local asked, meters, exceeded = {}, {}, {}
  for at, array in ipairs(limits) do
    local limit, need = read_limit(array), needs[at]
    local meter = load(limit)
    asked[at], meters[at], exceeded[at] = limit, meter, 0
    if need > meter.units then
      local has_grace, is_too_much = false, need > meter.amount + limit.grace_units
      if is_final and not is_too_much then
        if meter.exceeded == 0 then
          meter.exceeded, meter.is_changed = now, true
        end
        has_grace = now < meter.exceeded + limit.grace and need <= meter.units + limit.grace_units
      end
      if not has_grace then
        if not is_final or is_too_much or not limit.may_exceed then
          local wait = compute_wait(meter, limit, need)
          return {'short', limit.id, meter.units, wait, list_holders(limit.id, worker), save_changed(meters)}
        end
        exceeded[at] = 1
      end
    end
  end
  local loans, members = {}, math.max(1, redis.call('ZCARD', prefix .. ':seen'))
  for at, meter in ipairs(meters) do
    local spare = math.floor(meter.units / (SPARE_PARTS * members))
    if exceeded[at] == 1 then
      spare = needs[at] + math.floor(meter.amount / (SPARE_PARTS * members))
    end
    local units = math.max(needs[at], math.min(likes[at], spare))
    take(meter, units)
    set_lent(meter.id, worker, get_lent(meter.id, worker) + units)
    local full = math.max(0, compute_wait(meter, asked[at], meter.amount))
    local ends = meter.kind == 'calendar' and meter.ends - now or 0
    loans[at] = {meter.id, find_epoch(meter), units, math.max(0, meter.units), full, ends, exceeded[at]}
  end
  return {'lent', loans, save_changed(meters)}
end

-- Whether these debts were told of before, over a line that broke; they are noted.
local function is_told(worker, number)
  local key = prefix .. ':told:' .. worker
  if number == 0 or number <= tonumber(redis.call('HGET', key, 'number') or 0) then
    return number > 0
  end
  redis.call('HSET', key, 'number', write(number))
  keep(key, DAY_US)
  return false
end

local function give_all(worker, limits, epochs, units)
  local meters = {}
  for at, array in ipairs(limits) do
    local limit, back = read_limit(array), units[at]
    local meter
    if limit.kind == '' then
      meter = read_meter(limit.id)
      if not meter or meter.kind ~= 'places' then
        meter = nil
        set_lent(limit.id, worker, 0)
      end
    else
      meter = load(limit)
    end
    if meter then
      if meter.kind == 'places' then
        local lent = get_lent(meter.id, worker)
        back = math.min(back, lent)
        set_lent(meter.id, worker, lent - back)
      else
        set_lent(meter.id, worker, 0)  -- whoever returns some returns all that is left
      end
      if back < 0 then
        take(meter, -back)
      elseif epochs[at] == find_epoch(meter) then
        give(meter, back)
      end
      meters[#meters + 1] = meter
    end
  end
  return save_changed(meters)
end

-- {worker, {limit…}, {epoch…}, {units…}, recalled, number}: of a limit of kind '' this control plane knows no more.
function operations.give(worker, limits, epochs, units, recalled, number)
  local states = is_told(worker, number) and {} or give_all(worker, limits, epochs, units)
  if recalled ~= '' then
    redis.call('PUBLISH', prefix .. ':news', cmsgpack.pack({'returned', recalled, worker}))
  end
  return {'done', states}
end

-- {worker, is_first, {limit…}, {units…}}: it is there, and holds this of what it was lent before.
function operations.join(worker, is_first, limits, units)
  compute_settling()
  if is_first then
    leave(worker)
  end
  redis.call('ZADD', prefix .. ':seen', write(read_uptime()), worker)
  local meters = {}
  for at, array in ipairs(limits) do
    local meter = load(read_limit(array))
    if meter.kind == 'places' then
      take(meter, units[at] - get_lent(meter.id, worker))
    end
    set_lent(meter.id, worker, units[at])
    meters[at], meter.is_changed = meter, true
  end
  return {'done', save_changed(meters)}
end

-- {worker}
function operations.leave(worker)
  leave(worker)
  return {'done', {}}
end

-- {{worker…}}: they are still there.
function operations.tick(workers)
  compute_settling()
  local last = tonumber(redis.call('HGET', prefix .. ':meta', 'tick') or now)
  local up = read_uptime() + math.max(0, math.min(TICK_MAX_US, now - last))
  redis.call('HSET', prefix .. ':meta', 'tick', write(now), 'up', write(up))
  redis.call('ZADD', prefix .. ':planes', write(up), plane)
  redis.call('ZREMRANGEBYSCORE', prefix .. ':planes', '-inf', '(' .. write(up - PLANE_US))
  local strangers = {}
  for _, worker in ipairs(workers) do
    if redis.call('ZSCORE', prefix .. ':seen', worker) then
      redis.call('ZADD', prefix .. ':seen', write(up), worker)
    else
      strangers[#strangers + 1] = worker
    end
  end
  local gone = '(' .. write(up - MEMBER_US)
  local expired = redis.call('ZRANGEBYSCORE', prefix .. ':seen', '-inf', gone, 'LIMIT', 0, EXPIRED_MAX)
  for _, worker in ipairs(expired) do
    leave(worker)
  end
  return {'ticked', now, redis.call('ZCARD', prefix .. ':seen'), strangers}
end

-- {{limit…}}: their amounts hold from now on.
function operations.touch(limits)
  local meters = {}
  for at, array in ipairs(limits) do
    meters[at] = load(read_limit(array))
  end
  return {'done', save_changed(meters)}
end

-- {id, {worker…}}: these are to return what they have of a limit.
function operations.recall(id, workers)
  redis.call('PUBLISH', prefix .. ':news', cmsgpack.pack({'recall', id, unpack(workers)}))
  return {'done', {}}
end

-- {{id…}}: who has something of these limits.
function operations.holders(ids)
  local found = {}
  for at, id in ipairs(ids) do
    found[at] = list_holders(id, '')
  end
  return {'held', found}
end

-- {{limit…}}: how they stand; changes nothing.
function operations.show(limits)
  local found = {}
  for at, array in ipairs(limits) do
    local limit = read_limit(array)
    local meter, lent = load(limit), 0
    for _, units in ipairs(redis.call('HVALS', prefix .. ':lent:' .. limit.id)) do
      lent = lent + tonumber(units)
    end
    local full = compute_wait(meter, limit, meter.amount)
    if meter.kind == 'calendar' then
      full = math.max(0, meter.ends - now)
    end
    found[at] = {limit.id, meter.units, lent, full, find_epoch(meter), meter.exceeded, meter.amount}
  end
  return {'shown', found}
end

local limits_at = {ask = 5, give = 4, join = 5, show = 3, touch = 3}
local at = limits_at[operation]
if at and not has_periods(call[at]) then
  return {'periods', now}
end
return operations[operation](unpack(call, 3, 8))
