-- Lends units of limits to the workers of many machines: `policy/lending.py` over keys that all of them share.
--
-- KEYS[1] is the prefix of all keys, with a hash tag, so that they lie in one slot of a cluster.  ARGV[1] is a
-- call in MessagePack, as `quota_script.py` makes it.  Numbers are doubles, so all arithmetic stays within 2^53:
-- units are whole, times are whole microseconds of this server's clock.  A bucket's level is `units` and `rest`,
-- a part of a unit in `rest / period`: each microsecond adds exactly `amount / period`.  So nothing is rounded.
--
-- Keys: PREFIX:meta (since when, how long it has been up), PREFIX:seen (workers by when they were last seen),
-- PREFIX:held:WORKER (limits of which it has loans), PREFIX:limit:ID (what is left), PREFIX:lent:ID (by worker).

local SPARE_PARTS = 4          -- as in `lending.py`
local SLACK_US = 300000000     -- a clock that goes back by less begins no earlier period
local SETTLE_US = 500000       -- after the first call ever, for workers to say what they hold
local MEMBER_US = 5000000      -- a worker that was not seen for so long is gone
local TICK_MAX_US = 2000000    -- more than this between two ticks is time in which this server was away
local UNITS_MAX = 9e15         -- a debt is never more: 2^53 is a little beyond
local EXPIRED_MAX = 200        -- workers that one tick takes leave of
local FIELDS = {'kind', 'mark', 'count', 'units', 'rest', 'at', 'ends', 'exceeded', 'amount', 'amount_at',
                'base', 'base_at'}

local prefix = KEYS[1]
local call = cmsgpack.unpack(ARGV[1])
local operation, mark = call[1], call[2]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local function write(number)
  return string.format('%.0f', number)
end

-- a * b / c in whole, and the rest; exact, though a * b may be far beyond 2^53.
local function divide(a, b, c)
  local whole, part = math.floor(b / c), b % c
  local quotient, rest, left, bit = 0, 0, a, 1
  while bit * 2 <= a do
    bit = bit * 2
  end
  while bit >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if left >= bit then
      left, rest = left - bit, rest + part
    end
    while rest >= c do
      rest, quotient = rest - c, quotient + 1
    end
    bit = bit / 2
  end
  return quotient + a * whole, rest
end

-- A bucket's level after so long.
local function fill(amount, period, units, rest, passed)
  local periods = math.floor(passed / period)
  local more, part = divide(amount, passed % period, period)
  rest = rest + part
  if rest >= period then
    rest, more = rest - period, more + 1
  end
  units = units + more + periods * amount
  if units >= amount then
    return amount, 0
  end
  return units, rest
end

-- The calendar's period in which a moment lies, of those that came with the call.
local function find_period(limit)
  for _, period in ipairs(limit.periods) do
    if period[1] <= now and now < period[2] then
      return period[1], period[2]
    end
  end
end

local function read_limit(array)
  local limit = {id = array[1], kind = array[2], amount = array[3], age = array[4], period = array[5],
                 periods = array[6], grace_units = array[7], grace = array[8], may_exceed = array[9]}
  local known = array[10]
  if known and #known > 0 then
    limit.known = {mark = known[1], count = known[2], units = known[3], rest = known[4], at = known[5],
                   ends = known[6], exceeded = known[7], amount = known[8], amount_at = 0}
  end
  return limit
end

-- What lies in this server, as it is; nil where there is nothing.
local function read_meter(id)
  local key = prefix .. ':limit:' .. id
  local values = redis.call('HMGET', key, unpack(FIELDS))
  if not values[1] then
    return nil
  end
  local meter = {id = id, key = key, kind = values[1], mark = values[2], is_changed = false}
  for at = 3, #FIELDS do
    meter[FIELDS[at]] = tonumber(values[at])
  end
  return meter
end

local function make_meter(limit)
  local meter = {id = limit.id, key = prefix .. ':limit:' .. limit.id, kind = limit.kind, mark = mark, count = 0,
                 units = limit.amount, rest = 0, at = 0, ends = 0, exceeded = 0, amount = limit.amount,
                 amount_at = now - limit.age, is_changed = true}
  if limit.kind == 'bucket' then
    meter.at = now
  elseif limit.kind == 'calendar' then
    meter.at, meter.ends = find_period(limit)
  end
  meter.base, meter.base_at = meter.units, meter.at
  return meter
end

-- This server has lost what a control plane still knows: that is the state to go on from.
local function restore(meter, known)
  for name, value in pairs(known) do
    meter[name] = value
  end
  meter.mark, meter.base, meter.base_at, meter.is_changed = mark, known.units, known.at, true
end

-- The state went on without what a control plane knows of the time before a loss: what that lacked is taken.
local function merge(meter, known, period)
  local base, mine = meter.base, known.units
  local at = math.max(meter.base_at, known.at)
  if meter.kind == 'calendar' then
    if known.at < meter.base_at or known.at ~= meter.at then
      return
    elseif meter.base_at < known.at then
      base = meter.amount
    end
  else
    base = fill(meter.amount, period, base, 0, at - meter.base_at)
    mine = fill(meter.amount, period, mine, known.rest, at - known.at)
  end
  if mine < base then
    meter.units = meter.units - (base - mine)
    base = mine
  end
  meter.base, meter.base_at, meter.is_changed = base, at, true
end

local function advance(meter, limit)
  if meter.kind == 'bucket' then
    if meter.at > now + SLACK_US then
      meter.at = now  -- the clock had run ahead, and was put right
    end
    local passed = now - meter.at
    if passed > 0 then
      meter.units, meter.rest = fill(meter.amount, limit.period, meter.units, meter.rest, passed)
      meter.at = now
      if meter.units == meter.amount then
        meter.exceeded = 0
      end
    end
  elseif meter.kind == 'calendar' and (now >= meter.ends or now < meter.at - SLACK_US) then
    if now >= meter.ends then
      meter.units, meter.exceeded = meter.amount, 0
    end
    meter.at, meter.ends = find_period(limit)
    meter.is_changed = true
  end
end

local function change(meter, limit)
  local before = meter.amount
  meter.amount, meter.amount_at, meter.is_changed = limit.amount, now - limit.age, true
  if meter.kind ~= 'bucket' then
    meter.units = meter.units + limit.amount - before
  elseif meter.units >= limit.amount then
    meter.units, meter.rest = limit.amount, 0
  end
  if limit.amount > before and meter.units > 0 then
    meter.exceeded = 0
  end
end

-- The meter of a limit as it is now.
local function load(limit)
  local meter = read_meter(limit.id)
  local known = limit.kind ~= 'places' and limit.known
  if not meter then
    meter = make_meter(limit)
    if known then
      restore(meter, known)
    end
  elseif known and known.mark ~= meter.mark then
    merge(meter, known, limit.period)
  elseif known and known.count > meter.count then
    restore(meter, known)
  end
  advance(meter, limit)
  if meter.amount ~= limit.amount and now - limit.age >= meter.amount_at then
    change(meter, limit)
  end
  return meter
end

local function save(meter)
  meter.count = meter.count + 1
  local values = {}
  for at, name in ipairs(FIELDS) do
    values[2 * at - 1] = name
    values[2 * at] = at <= 2 and meter[name] or write(meter[name])
  end
  redis.call('HSET', meter.key, unpack(values))
end

local function take(meter, units)
  meter.units = math.max(-UNITS_MAX, meter.units - units)
  meter.is_changed = true
end

local function give(meter, units)
  meter.units = meter.units + units
  if meter.units >= meter.amount then
    meter.units, meter.rest = meter.amount, 0
  end
  meter.is_changed = true
end

local function find_epoch(meter)
  return meter.kind == 'calendar' and meter.at or 0
end

-- Microseconds until so many units are left if nobody takes any; -1 where time does not tell.
local function compute_wait(meter, limit, units)
  if units > meter.amount or meter.kind == 'places' or meter.amount == 0 then
    return -1
  elseif units <= meter.units then
    return 0
  elseif meter.kind == 'calendar' then
    return math.max(0, meter.ends - now)
  end
  local wait, rest = divide(units - meter.units, limit.period, meter.amount)
  wait = wait + math.ceil((rest - meter.rest) / meter.amount) - (now - meter.at)
  return math.min(UNITS_MAX, math.max(0, wait))
end

-- What a control plane is to remember.
local function describe(meter)
  return {meter.id, meter.mark, meter.count, meter.units, meter.rest, meter.at, meter.ends, meter.exceeded,
          meter.amount}
end

local function set_lent(id, worker, units)
  if units > 0 then
    redis.call('HSET', prefix .. ':lent:' .. id, worker, write(units))
    redis.call('SADD', prefix .. ':held:' .. worker, id)
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
    local meter = read_meter(id)
    if meter and meter.kind == 'places' then
      give(meter, get_lent(id, worker))
      save(meter)
    end
    redis.call('HDEL', prefix .. ':lent:' .. id, worker)
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
  return math.max(0, math.min(SETTLE_US, tonumber(born) + SETTLE_US - now))
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
      local has_grace = false
      if is_final then
        if meter.exceeded == 0 then
          meter.exceeded, meter.is_changed = now, true
        end
        has_grace = now < meter.exceeded + limit.grace and need <= meter.units + limit.grace_units
      end
      if not has_grace then
        if not is_final or not limit.may_exceed then
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
    local units = exceeded[at] == 1 and likes[at] or math.max(needs[at], math.min(likes[at], spare))
    take(meter, units)
    set_lent(meter.id, worker, get_lent(meter.id, worker) + units)
    local full = math.max(0, compute_wait(meter, asked[at], meter.amount))
    local ends = meter.kind == 'calendar' and meter.ends - now or 0
    loans[at] = {meter.id, find_epoch(meter), units, math.max(0, meter.units), full, ends, exceeded[at]}
  end
  return {'lent', loans, save_changed(meters)}
end

-- {worker, {limit…}, {epoch…}, {units…}, recalled}: of a limit of kind '' this control plane knows no more.
function operations.give(worker, limits, epochs, units, recalled)
  local meters = {}
  for at, array in ipairs(limits) do
    local limit, back = read_limit(array), units[at]
    local meter
    if limit.kind == '' then
      meter = read_meter(limit.id)
      if meter and meter.kind ~= 'places' then
        meter = nil
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
  local states = save_changed(meters)
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
    meters[at] = meter
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
  local strangers = {}
  for _, worker in ipairs(workers) do
    if redis.call('ZSCORE', prefix .. ':seen', worker) then
      redis.call('ZADD', prefix .. ':seen', write(up), worker)
    else
      strangers[#strangers + 1] = worker
    end
  end
  local gone = '(' .. write(up - MEMBER_US)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', prefix .. ':seen', '-inf', gone, 'LIMIT', 0, EXPIRED_MAX)) do
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
return operations[operation](unpack(call, 3, 7))
