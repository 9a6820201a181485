-- Reserve all that a request may take of its limits, or nothing.
--
-- KEYS: the tenant's open reservations, this one's record; the buckets and the records of expired ones lie under
--   the same hash tag and are named by plans.
-- ARGV: the tag; the plan; doubles: requests, input, output, spend at most, input and output likely, lifetime in
--   ms, 1 to take it without asking, parts that it is to the engine; the reservation's id; [MessagePack: what the
--   ledger has of windows, by bucket]
-- Answers doubles: verdict, bucket, milliseconds, now, within contract, overdue ones left, then limit, remaining
--   and ms to a full reset of the tightest requests and tokens limits (-1: none), then the level of each rate and
--   contract in the plan's order; and for MISSING the buckets.

local TAKEN, LIMITED, EXHAUSTED, TOO_LARGE, MISSING, KNOWN = 0, 1, 2, 3, 4, 5
local HELD_WAIT = 1000

local open, record_key, tag = KEYS[1], KEYS[2], ARGV[1]
local plan = cmsgpack.unpack(ARGV[2])
local requests, input, output, spend, likely_input, likely_output, lifetime, force, parts =
  struct.unpack('<ddddddddd', ARGV[3])
local seeds = ARGV[5] and cmsgpack.unpack(ARGV[5]) or {}
local now = clock()
local overdue = expire(tag, open, now, 8)

local keys, values = buckets_of(tag, plan)
local most = measures(requests, input, output, spend)
local likely = measures(requests, likely_input, likely_output, 0)

local verdict, bucket, wait, within = TAKEN, 0, 0, 1
local function refuse(how, which, ms)
  if how > verdict or (how == verdict and ms > wait) then verdict, bucket, wait = how, which, ms end
end

-- What each bucket would be, and what is missing.
local first_of, second_of, third_of, missing, counted = {}, {}, {}, {}, now
local day_first, day_end, month_first, month_end
for b = 1, #keys do
  local i = b * 4 - 3
  local kind, measure, limit, value = plan[i + 1], plan[i + 2], plan[i + 3], values[b]
  if kind == RATE or kind == CONTRACT then
    local level, at = drained(keys[b], value, now, limit)
    local need, capacity = likely[measure] * UNIT, limit * UNIT
    if kind == CONTRACT then
      if level + need > capacity then within = 0 else level = level + need end
    else
      if need > capacity then
        refuse(TOO_LARGE, b, 0)
      elseif level + need > capacity then
        refuse(LIMITED, b, at - now + (limit > 0 and ceil((level + need - capacity) / limit) or 0))
      end
      level = level + need
    end
    first_of[b], second_of[b] = level, at
  elseif kind == HELD then
    local held = (value and struct.unpack('<d', value) or 0) + 1
    if limit < 1 then refuse(TOO_LARGE, b, 0) elseif held > limit then refuse(LIMITED, b, HELD_WAIT) end
    first_of[b] = held
  else
    local first, finish
    if kind == DAY then
      if not day_first then day_first, day_end = window_of(DAY, now) end
      first, finish = day_first, day_end
    elseif kind == EVER then
      first, finish = window_of(EVER, now)
    else
      if not month_first then month_first, month_end = window_of(MONTH, now) end
      first, finish = month_first, month_end
    end
    local used, held = 0, 0
    if value then
      local began
      began, used, held = struct.unpack('<ddd', value)
      if began < first then used, held = 0, 0 else first = began end
      counted = max(counted, first)  -- later than now where the clock was set back into the window before
    elseif seeds[b] then
      used = seeds[b]
      put_window(keys[b], first, used, 0)  -- also if the request is refused: the ledger is not asked again
    else
      missing[#missing + 1] = b
    end
    local need = most[measure]
    if need > limit and kind ~= EVER then  -- of what is for ever the limit grows when more is paid in
      refuse(TOO_LARGE, b, 0)
    elseif used + need > limit then
      refuse(EXHAUSTED, b, finish - now)
    elseif used + held + need > limit then
      refuse(LIMITED, b, min(HELD_WAIT, finish - now))
    end
    first_of[b], second_of[b], third_of[b] = first, used, held + need
  end
end

if force == 1 then verdict, bucket, wait = TAKEN, 0, 0 end
if #missing > 0 then
  return struct.pack('<dddddd', MISSING, 0, 0, now, 0, overdue) .. cmsgpack.pack(missing)
end

if verdict == TAKEN then
  local record = pack_record({
    state = 'o', began = now, counted = counted, requests = requests, input = input, output = output, spend = spend,
    likely_input = likely_input, likely_output = likely_output, within = within, parts = parts,
    parts_done = '', used = {0, 0, 0, 0}, plan = ARGV[2],
  })
  if not redis.call('SET', record_key, record, 'NX') then
    verdict = KNOWN
  else
    redis.call('ZADD', open, now + lifetime, ARGV[4])
    for b = 1, #keys do
      local i = b * 4 - 3
      local kind = plan[i + 1]
      if kind == RATE or (kind == CONTRACT and within == 1) then
        put_rate(keys[b], first_of[b], second_of[b], plan[i + 3])
      elseif kind == HELD then
        redis.call('SET', keys[b], struct.pack('<d', first_of[b]))
      elseif kind ~= CONTRACT then
        put_window(keys[b], first_of[b], second_of[b], third_of[b])
      end
    end
  end
end

-- How far the caller is from the tightest limits now, and where the rates stand. What was refused is not counted.
local limit_of, left_of, reset_of, levels = {-1, -1}, {-1, -1}, {-1, -1}, {}
for b = 1, #keys do
  local i = b * 4 - 3
  local kind, measure, limit = plan[i + 1], plan[i + 2], plan[i + 3]
  if kind == RATE or kind == CONTRACT then
    local level = first_of[b]
    if verdict ~= TAKEN and (kind == RATE or within == 1) then level = level - likely[measure] * UNIT end
    levels[#levels + 1] = struct.pack('<d', level)
  end
  if kind ~= HELD and kind ~= CONTRACT and measure ~= 5 then
    local left, reset
    if kind == RATE then
      local level = first_of[b]
      if verdict ~= TAKEN then level = level - likely[measure] * UNIT end
      left = floor(max(0, limit * UNIT - level) / UNIT)
      reset = limit > 0 and ceil(level / limit) or 0
    else
      left = limit - second_of[b] - third_of[b]
      if verdict ~= TAKEN then left = left + most[measure] end
      left = max(0, left)
      reset = (kind == DAY and day_end or month_end) - now
    end
    local group = measure == 1 and 1 or 2
    if limit_of[group] < 0 or left < left_of[group] or (left == left_of[group] and reset > reset_of[group]) then
      limit_of[group], left_of[group], reset_of[group] = limit, left, reset
    end
  end
end
return struct.pack('<dddddddddddd', verdict, bucket, wait, now, within, overdue,
  limit_of[1], left_of[1], reset_of[1], limit_of[2], left_of[2], reset_of[2]) .. table.concat(levels)
