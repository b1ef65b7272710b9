-- What is left of one limit: `policy/meter.py` over a hash that many machines share.  The first part of the script
-- that `quota.lua` is the second of.
--
-- Numbers are doubles, so all arithmetic stays within 2^53: units are whole, times are whole microseconds of this
-- server's clock.  A bucket's level is `units` and `rest`, a part of a unit in `rest / period`: each microsecond
-- adds exactly `amount / period`.  So nothing is rounded.

local SLACK_US = 300000000     -- a clock that goes back by less begins no earlier period
local UNITS_MAX = 9e15         -- a debt is never more: 2^53 is a little beyond
local FIELDS = {'kind', 'mark', 'count', 'units', 'rest', 'at', 'ends', 'exceeded', 'amount', 'amount_at',
                'base', 'base_at', 'later_at', 'later_ends', 'later_used'}
local STILL = -1               -- as in `meter.py`
local DAY_US = 86400000000
local KEPT_MIN_US = 600000000  -- keys that come and go with each second would be no gain
local KEPT_MAX_US = 400 * DAY_US  -- a limit that nobody has used for so long is forgotten, whatever it owes

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
                   ends = known[6], exceeded = known[7], amount = known[8], later_at = known[9],
                   later_ends = known[10], later_used = known[11], amount_at = 0}
  end
  return limit
end

local function forget_later(meter)
  meter.later_at, meter.later_ends, meter.later_used = 0, 0, STILL
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
  if not meter.later_used then
    forget_later(meter)  -- an earlier version wrote it
  end
  return meter
end

local function make_meter(limit)
  local meter = {id = limit.id, key = prefix .. ':limit:' .. limit.id, kind = limit.kind, mark = mark, count = 0,
                 units = limit.amount, rest = 0, at = 0, ends = 0, exceeded = 0, amount = limit.amount,
                 amount_at = now - limit.age, later_at = 0, later_ends = 0, later_used = STILL, is_changed = true}
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

-- The clock is in another of the calendar's periods; see `meter.py`.
local function turn(meter, at, ends)
  if now < meter.ends then
    if meter.later_ends == 0 then
      meter.later_at, meter.later_ends, meter.later_used = meter.at, meter.ends, STILL
    end
  elseif meter.later_at <= now and now < meter.later_ends then
    at, ends = meter.later_at, meter.later_ends
    if meter.later_used ~= STILL then
      meter.units, meter.exceeded = meter.amount - meter.later_used, 0
    end
    forget_later(meter)
  elseif at < meter.ends and ends - now < now - at then
    meter.ends = ends
    return
  else
    if now >= meter.later_ends then
      forget_later(meter)
    elseif meter.later_used == STILL then
      meter.later_used = meter.amount - meter.units
    end
    meter.units, meter.exceeded = meter.amount, 0
  end
  meter.at, meter.ends = at, ends
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
    turn(meter, find_period(limit))
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

-- Whether a state says no more than that nothing is known: two periods ago the bucket was full again.
local function is_past(limit, known)
  local passed = now - known.at - 2 * limit.period
  return limit.kind == 'bucket' and passed > 0 and
         fill(known.amount, limit.period, known.units, known.rest, passed) == known.amount
end

-- The meter of a limit as it is now.
local function load(limit)
  local meter = read_meter(limit.id)
  local known = limit.kind ~= 'places' and limit.known
  if known and is_past(limit, known) then
    known = nil
  end
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
  meter.period = limit.period
  advance(meter, limit)
  local is_later = now - limit.age >= meter.amount_at or meter.amount_at > now  -- the clock may have gone back
  if meter.amount ~= limit.amount and is_later then
    change(meter, limit)
  end
  return meter
end

-- For how long a state matters that nobody changes: once it would be that of a new limit it may be forgotten,
-- and is, some periods later.  Places matter as long as somebody holds some.
local function compute_kept(meter)
  local kept = DAY_US
  if meter.kind == 'calendar' then
    kept = math.max(meter.ends, meter.later_ends) - now + meter.period
  elseif meter.kind == 'bucket' and meter.amount > 0 then
    kept = (2 + math.max(0, meter.amount - meter.units) / meter.amount) * meter.period
  elseif meter.kind == 'bucket' then
    kept = KEPT_MAX_US
  end
  return math.max(KEPT_MIN_US, math.min(KEPT_MAX_US, kept))
end

local function keep(key, us)
  redis.call('PEXPIRE', key, write(math.ceil(us / 1000)))
end

local function save(meter)
  meter.count = meter.count + 1
  local values = {}
  for at, name in ipairs(FIELDS) do
    values[2 * at - 1] = name
    values[2 * at] = at <= 2 and meter[name] or write(meter[name])
  end
  redis.call('HSET', meter.key, unpack(values))
  local lent = prefix .. ':lent:' .. meter.id
  if meter.kind == 'places' and redis.call('HLEN', lent) > 0 then
    redis.call('PERSIST', meter.key)
  else
    local kept = compute_kept(meter)
    keep(meter.key, kept)
    keep(lent, kept)
  end
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
          meter.amount, meter.later_at, meter.later_ends, meter.later_used}
end
