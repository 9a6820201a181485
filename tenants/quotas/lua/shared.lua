-- What every script of the quotas begins with: the buckets, and how a reservation ends. Before it stand `clock`,
-- in milliseconds, and the times that `Timing` names.
--
-- A bucket's value is doubles, all integers below 2^53:
--   rate:   level (a sixty-thousandth of a unit each), the millisecond it stood at that, units per minute
--   held:   how many
--   window: its first millisecond, used, held; one that is for ever began at 0
-- A plan is a flat list, four entries a bucket: name, kind, measure, limit.
-- A reservation's record is MessagePack: see `unpack_record`. State o is open, e expired; of one that was settled
-- only an s is left.

local RATE, HELD, DAY, MONTH, CONTRACT, EVER = 1, 2, 3, 4, 5, 6
-- A time that never comes, in milliseconds: below 2^53, and later than any other.
local NEVER = 9e15
local UNIT = 60000
local DAY_MS = 86400000
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
-- A clock that was set back stands still for the buckets until it has caught up, but for no longer than this.
local MOST_STANDSTILL = 60000
-- An expired reservation is remembered so long: its request may still end and say what it used.
local EXPIRED_TTL = 7200000

-- The first millisecond of the calendar month of `now`, and of the next: days to civil dates in the proleptic
-- Gregorian calendar, counted from March so that the leap day comes last.
local function month_of(now)
  local days = floor(now / DAY_MS)
  local z = days + 719468
  local era = floor(z / 146097)
  local of_era = z - era * 146097
  local year_of_era = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
  local from_march = floor((5 * of_year + 2) / 153)
  local first = days - (of_year - floor((153 * from_march + 2) / 5))
  local length = 31
  if from_march == 11 then
    local year = year_of_era + era * 400 + 1
    length = 28
    if (year % 4 == 0 and year % 100 ~= 0) or year % 400 == 0 then length = 29 end
  elseif from_march == 1 or from_march == 3 or from_march == 6 or from_march == 8 then
    length = 30
  end
  return first * DAY_MS, (first + length) * DAY_MS
end

local function window_of(kind, now)
  if kind == DAY then
    local first = floor(now / DAY_MS) * DAY_MS
    return first, first + DAY_MS
  end
  if kind == EVER then return 0, NEVER end
  return month_of(now)
end

local function is_window(kind)
  return kind == DAY or kind == MONTH or kind == EVER
end

local function put_rate(key, level, at, limit)
  local ttl = MOST_STANDSTILL * 2
  if limit > 0 then ttl = ttl + ceil(level / limit) end
  redis.call('SET', key, struct.pack('<ddd', level, at, limit), 'PX', min(ttl, 9e12))
end

-- A rate's level as of `now`, and as of when that is: later than now while the clock stands still.
local function drained(key, value, now, limit)
  if not value then return 0, now, limit end
  local level, at, rate = struct.unpack('<ddd', value)
  if at <= now then return max(0, level - (now - at) * rate), now, rate end
  if at - now > MOST_STANDSTILL then
    at = now
    put_rate(key, level, at, rate)  -- also where nothing else is written: it is to drain from now on
  end
  return level, at, rate
end

-- Windows without a request for a day are read from the ledger again, with all that changed meanwhile.
local WINDOW_TTL = 90000000

local function put_window(key, first, used, held)
  redis.call('SET', key, struct.pack('<ddd', first, used, held), 'PX', WINDOW_TTL)
end

-- By measure: requests, input tokens, output tokens, tokens, spend.
local function measures(requests, input, output, spend)
  return {requests, input, output, input + output, spend}
end

local function unpack_record(value)
  local state, began, counted, requests, input, output, spend, likely_input, likely_output, within, parts,
    parts_done, used_requests, used_input, used_output, used_spend, plan = cmsgpack.unpack(value)
  return {
    state = state, began = began, counted = counted, requests = requests, input = input, output = output,
    spend = spend, likely_input = likely_input, likely_output = likely_output, within = within, parts = parts,
    parts_done = parts_done, used = {used_requests, used_input, used_output, used_spend}, plan = plan,
  }
end

local function pack_record(r)
  return cmsgpack.pack(r.state, r.began, r.counted, r.requests, r.input, r.output, r.spend, r.likely_input,
    r.likely_output, r.within, r.parts, r.parts_done, r.used[1], r.used[2], r.used[3], r.used[4], r.plan)
end

-- The keys of a plan's buckets, and what they hold.
local function buckets_of(tag, plan)
  local keys = {}
  for i = 1, #plan, 4 do keys[#keys + 1] = tag .. plan[i] end
  return keys, redis.call('MGET', unpack(keys))
end

-- Give back what an open reservation holds and charge `used` instead.
local function close(tag, r, used, now)
  local plan = cmsgpack.unpack(r.plan)
  local most = measures(r.requests, r.input, r.output, r.spend)
  local likely = measures(r.requests, r.likely_input, r.likely_output, 0)
  local keys, values = buckets_of(tag, plan)
  for b = 1, #keys do
    local i = b * 4 - 3
    local key, value, kind, measure, limit = keys[b], values[b], plan[i + 1], plan[i + 2], plan[i + 3]
    if kind == HELD then
      local held = value and struct.unpack('<d', value) or 0
      if held > 1 then redis.call('SET', key, struct.pack('<d', held - 1)) else redis.call('DEL', key) end
    elseif kind == RATE or (kind == CONTRACT and r.within == 1) then
      local level, at, rate = drained(key, value, now, limit)
      local unused = (likely[measure] - used[measure]) * UNIT
      -- What has drained since may have been the unused part: returning that too would let it be used twice.
      if unused > 0 then unused = max(0, unused - max(0, now - r.began) * max(rate, limit)) end
      level = max(0, level - unused)
      if value or level > 0 then put_rate(key, level, at, rate) end
    elseif is_window(kind) and value then
      local first, total, held = struct.unpack('<ddd', value)
      if first == window_of(kind, r.counted) then
        put_window(key, first, total + used[measure], max(0, held - most[measure]))
      end
    end
  end
end

-- Charge `used` of a reservation that expired: what it held was given back then.
local function charge(tag, r, used, now)
  local plan = cmsgpack.unpack(r.plan)
  local keys, values = buckets_of(tag, plan)
  for b = 1, #keys do
    local i = b * 4 - 3
    local key, value, kind, measure, limit = keys[b], values[b], plan[i + 1], plan[i + 2], plan[i + 3]
    if kind == RATE or (kind == CONTRACT and r.within == 1) then
      local level, at, rate = drained(key, value, now, limit)
      put_rate(key, level + used[measure] * UNIT, at, rate)
    elseif is_window(kind) and value then
      local first, total, held = struct.unpack('<ddd', value)
      if first == window_of(kind, r.counted) then put_window(key, first, total + used[measure], held) end
    end
  end
end

-- Returns whether Redis has received renewals for long enough that a reservation without one has lost its process.
-- After a silence, Redis may have been unreachable, and processes get time to reconnect and renew.
-- The key `heard` has when renewals began to arrive and when one last did.
local function hearing(tag, now)
  local value = redis.call('GET', tag .. 'heard')
  local since, last = now, now
  if value then
    since, last = struct.unpack('<dd', value)
    if now - last > LONGEST_SILENCE or now < since then since = now end
  end
  redis.call('SET', tag .. 'heard', struct.pack('<dd', since, now), 'PX', 3600000)
  return now - since >= GRACE
end

-- Return what expired reservations hold, of at most `most` of them; whether there are more that are overdue.
local function expire(tag, open, now, most)
  local overdue = redis.call('ZRANGEBYSCORE', open, '-inf', now, 'LIMIT', 0, most + 1)
  if #overdue == 0 then return 0 end
  if not hearing(tag, now) then return 1 end
  for i = 1, min(#overdue, most) do
    local id = overdue[i]
    local key = tag .. 'r:' .. id
    local value = redis.call('GET', key)
    if value then
      local r = unpack_record(value)
      if r.state == 'o' then
        close(tag, r, measures(r.used[1], r.used[2], r.used[3], r.used[4]), now)
        r.state = 'e'
        redis.call('SET', key, pack_record(r), 'PX', EXPIRED_TTL)
      end
    end
    redis.call('ZREM', open, id)
  end
  if #overdue > most then return 1 end
  return 0
end
