-- What is left of one limit: `policy/meter.py` over a hash that many machines share.  The first part of the script,
-- before `quota_known.lua` and `quota.lua`.
--
-- Numbers are doubles, so all arithmetic stays within 2^53: units are whole, times are whole microseconds of this
-- server's clock.  A bucket's level is `units` and `rest`, a part of a unit in `rest / period`: each microsecond
-- adds exactly `amount / period`.  So nothing is rounded.

local SLACK_US = 300000000     -- a clock that goes back by less begins no earlier period
local UNITS_MAX = 9e15         -- a debt is never more: 2^53 is a little beyond
local FIELDS = {'kind', 'units', 'rest', 'at', 'ends', 'exceeded', 'amount', 'amount_at', 'later_at', 'later_ends',
                'later_used', 'folds'}
local TOTALS_MAX = 32          -- control planes of which a limit has totals, before those that are gone are dropped
local STILL = -1               -- as in `meter.py`
local DAY_US = 86400000000
local KEPT_MIN_US = 600000000  -- keys that come and go with each second would be no gain
local PLANE_US = 3600000000    -- a control plane that was not seen for so long is gone
local KEPT_MAX_US = 400 * DAY_US  -- a limit that nobody has used for so long is forgotten, whatever it owes

local prefix = KEYS[1]
local call = cmsgpack.unpack(ARGV[1])
local operation, plane = call[1], call[2]
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
  if known and #known > 0 and limit.kind ~= 'places' then
    limit.known = {kind = limit.kind, totals = {}}
    for at = 2, #FIELDS do
      limit.known[FIELDS[at]] = known[at - 1]
    end
    local totals = known[#FIELDS]
    for at = 1, #totals, 3 do
      limit.known.totals[totals[at]] = {totals[at + 1], totals[at + 2]}
    end
  end
  return limit
end

local function forget_later(meter)
  meter.later_at, meter.later_ends, meter.later_used = 0, 0, STILL
end

-- What lies in this server, as it is; nil where there is nothing.  `totals`: what each control plane has taken and
-- returned in all, or in the period of a calendar.  They only grow, so whoever has less has lost something.
local function read_meter(id)
  local key = prefix .. ':limit:' .. id
  local values = redis.call('HGETALL', key)
  if #values == 0 then
    return nil
  end
  local meter = {id = id, key = key, totals = {}, is_changed = false}
  for at = 1, #values, 2 do
    local name, value = values[at], tonumber(values[at + 1])
    local sign, of = name:match('^([+-])(.*)$')
    if sign then
      meter.totals[of] = meter.totals[of] or {0, 0}
      meter.totals[of][sign == '+' and 1 or 2] = value
    else
      meter[name] = value or values[at + 1]
    end
  end
  return meter
end

local function make_meter(limit)
  local meter = {id = limit.id, key = prefix .. ':limit:' .. limit.id, kind = limit.kind, units = limit.amount,
                 rest = 0, at = 0, ends = 0, exceeded = 0, amount = limit.amount, amount_at = now - limit.age,
                 later_at = 0, later_ends = 0, later_used = STILL, folds = 0, totals = {}, is_changed = true}
  if limit.kind == 'bucket' then
    meter.at = now
  elseif limit.kind == 'calendar' then
    meter.at, meter.ends = find_period(limit)
  end
  return meter
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

-- When the period began whose use the level counts.
local function find_counted(meter)
  if meter.later_ends ~= 0 and meter.later_used == STILL then
    return meter.later_at
  end
  return meter.at
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
    local counted = find_counted(meter)
    turn(meter, find_period(limit))
    if find_counted(meter) ~= counted then
      meter.totals, meter.is_cut = {}, true
    end
    meter.is_changed = true
  end
end

local function change(meter, amount, amount_at)
  local before = meter.amount
  meter.amount, meter.amount_at, meter.is_changed = amount, amount_at, true
  if meter.kind ~= 'bucket' then
    meter.units = meter.units + amount - before
  elseif meter.units >= amount then
    meter.units, meter.rest = amount, 0
  end
  if amount > before and meter.units > 0 then
    meter.exceeded = 0
  end
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

-- Control planes that are gone for long take nothing more, and what they took is known to all that are there.
local function drop_gone(meter)
  local count, gone = 0, {}
  for name in pairs(meter.totals) do
    count = count + 1
    if name ~= plane and not redis.call('ZSCORE', prefix .. ':planes', name) then
      gone[#gone + 1] = name
    end
  end
  local born = tonumber(redis.call('HGET', prefix .. ':meta', 'born') or now)
  if count > TOTALS_MAX and #gone > 0 and now - born > PLANE_US then  -- or some have not come back yet
    for _, name in ipairs(gone) do
      meter.totals[name] = nil
    end
    meter.folds, meter.is_cut = meter.folds + 1, true
  end
end

local function save(meter)
  drop_gone(meter)
  local values = {}
  for at, name in ipairs(FIELDS) do
    values[2 * at - 1] = name
    values[2 * at] = name == 'kind' and meter.kind or write(meter[name])
  end
  for name, total in pairs(meter.totals) do
    for at, sign in ipairs({'+', '-'}) do
      values[#values + 1] = sign .. name
      values[#values + 1] = write(total[at])
    end
  end
  if meter.is_cut then
    redis.call('DEL', meter.key)
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

local function count(meter, taken, returned)
  if meter.kind ~= 'places' and (taken ~= 0 or returned ~= 0) then  -- who holds places says so
    local total = meter.totals[plane] or {0, 0}
    meter.totals[plane] = {total[1] + taken, total[2] + returned}
  end
  meter.is_changed = true
end

local function take(meter, units)
  local before = meter.units
  meter.units = math.max(-UNITS_MAX, before - units)
  count(meter, before - meter.units, 0)
end

local function give(meter, units)
  local before = meter.units
  meter.units = before + units
  if meter.units >= meter.amount then
    meter.units, meter.rest = meter.amount, 0
  end
  count(meter, 0, meter.units - before)  -- of what finds no room nothing is there to be lost
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

-- What a control plane is to remember, and to tell with each call.
local function describe(meter)
  local state, totals = {meter.id}, {}
  for at = 2, #FIELDS do
    state[at] = meter[FIELDS[at]]
  end
  for name, total in pairs(meter.totals) do
    totals[#totals + 1], totals[#totals + 2], totals[#totals + 3] = name, total[1], total[2]
  end
  state[#state + 1] = totals
  return state
end
