-- Settles a reservation with what was used: returns the rest, charges what exceeds it. Idempotent.
--
-- KEYS: the tenant's open reservations, the reservation's record.
-- ARGV: the tag; the id; doubles: requests, input, output, spend used; part of the request that this is about
--   (-1: all of it); ms for which to remember that it has ended.
-- Answers 1 when this ended or charged something, 0 when it was done before, -1 when there is no such
--   reservation, 2 when parts are still to come.

local open, record_key, tag = KEYS[1], KEYS[2], ARGV[1]
local requests, input, output, spend, part, memory = struct.unpack('<dddddd', ARGV[3])
local value = redis.call('GET', record_key)
if not value then return -1 end
if value == 's' then return 0 end
local now = clock()
local r = unpack_record(value)

if part >= 0 then
  -- The engine meters each prompt of a list by itself; the request counts once.
  local mark = ',' .. part .. ','
  if string.find(r.parts_done, mark, 1, true) then return 0 end
  local before = r.used
  if r.state == 'e' then
    charge(tag, r, measures(max(0, requests - before[1]), input, output, spend), now)
  end
  r.used = {max(requests, before[1]), before[2] + input, before[3] + output, before[4] + spend}
  r.parts_done = r.parts_done .. mark
  local _, marks = string.gsub(r.parts_done, ',%d+,', '')
  if marks < r.parts then
    if r.state == 'e' then
      redis.call('SET', record_key, pack_record(r), 'PX', EXPIRED_TTL)
    else
      redis.call('SET', record_key, pack_record(r))
    end
    return 2
  end
  if r.state == 'o' then close(tag, r, measures(r.used[1], r.used[2], r.used[3], r.used[4]), now) end
else
  if r.state == 'o' then
    close(tag, r, measures(requests, input, output, spend), now)
  else
    local before = r.used
    charge(tag, r, measures(max(0, requests - before[1]), max(0, input - before[2]),
      max(0, output - before[3]), max(0, spend - before[4])), now)
  end
end
redis.call('ZREM', open, ARGV[2])
redis.call('SET', record_key, 's', 'PX', memory)
return 1
