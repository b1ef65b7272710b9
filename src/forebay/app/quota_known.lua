-- What control planes know of a limit, and this server may have lost: it went back to an earlier state at a failover
-- or a restart, or came back with nothing.  The second part of the script, between `quota_meter.lua` and `quota.lua`.
--
-- Each control plane tells the state that it heard of last, with the totals of all that it counts.  Whatever total
-- is less here than there was lost, by exactly the difference, and is taken again.  So it matters neither who tells
-- first, nor how often, nor what was lent meanwhile.

-- What `meter` and `known` lack of what both together have, in units; and the totals of both.  A bucket may have
-- been full since units came back, so these do not count for it.
local function compare(meter, known)
  local here, there, is_lost, totals = 0, 0, false, {}
  local returns = meter.kind == 'bucket' and 0 or 1
  local function add(name)
    local mine, theirs = meter.totals[name], known.totals[name]
    if not mine and meter.folds > known.folds or not theirs and known.folds > meter.folds then
      if not redis.call('ZSCORE', prefix .. ':planes', name) then
        totals[name] = known.folds < meter.folds and mine or theirs
        return  -- it was dropped there, and is counted
      end
    end
    mine, theirs = mine or {0, 0}, theirs or {0, 0}
    local taken, returned = math.max(mine[1], theirs[1]), math.max(mine[2], theirs[2])
    is_lost = is_lost or taken > mine[1] or returned > mine[2]
    here = here + (taken - mine[1]) - returns * (returned - mine[2])
    there = there + (taken - theirs[1]) - returns * (returned - theirs[2])
    totals[name] = {taken, returned}
  end
  for name in pairs(meter.totals) do
    add(name)
  end
  for name in pairs(known.totals) do
    if not meter.totals[name] then
      add(name)
    end
  end
  return here, there, is_lost, totals
end

-- Both are as of now.
local function merge(meter, known)
  local here, there, is_lost, totals = compare(meter, known)
  if not is_lost then
    return
  end
  if known.amount_at > meter.amount_at then
    change(meter, known.amount, known.amount_at)
  end
  change(known, meter.amount, meter.amount_at)
  local units, rest = meter.units - here, meter.rest
  if meter.kind == 'bucket' then
    -- What was lost is taken now, not when it was, and so never too little; of the two ways to count, that which
    -- has lost less is nearer.
    local other = known.units - there
    if other > units or other == units and known.rest > rest then
      units, rest = other, known.rest
    end
  elseif known.folds > meter.folds then
    units = known.units - there
  end
  meter.units, meter.rest = math.max(-UNITS_MAX, units), rest
  if meter.units >= meter.amount then
    meter.units, meter.rest = meter.amount, 0
  end
  if meter.exceeded == 0 then
    meter.exceeded = known.exceeded
  end
  meter.totals, meter.folds = totals, math.max(meter.folds, known.folds)
  meter.is_changed, meter.is_cut = true, true
end

-- The meter of a limit as it is now.
local function load(limit)
  local meter, known = read_meter(limit.id), limit.known
  local epoch = meter and find_epoch(meter)
  if not meter then
    meter = make_meter(limit)
    for name, value in pairs(known or {}) do
      meter[name] = value
    end
    known = nil
  end
  meter.period = limit.period
  advance(meter, limit)
  if known then
    advance(known, limit)
    merge(meter, known)
  end
  local is_later = now - limit.age >= meter.amount_at or meter.amount_at > now  -- the clock may have gone back
  if meter.amount ~= limit.amount and is_later then
    change(meter, limit.amount, now - limit.age)
  end
  if epoch and find_epoch(meter) ~= epoch then
    redis.call('DEL', prefix .. ':lent:' .. meter.id)  -- what was lent in an earlier period is worth nothing now
  end
  return meter
end

