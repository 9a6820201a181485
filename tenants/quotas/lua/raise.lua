-- Raise rates to the levels that a process reached while it judged by its share. Again it changes nothing.
--
-- KEYS: the tenant's open reservations, for its hash tag. ARGV: the tag; MessagePack, flat: per bucket its name,
--   limit and level. Answers how many were raised.

local tag, told, now, raised = ARGV[1], cmsgpack.unpack(ARGV[2]), clock(), 0
for i = 1, #told, 3 do
  local key, limit, reached = tag .. told[i], told[i + 1], told[i + 2]
  local level, at = drained(key, redis.call('GET', key), now, limit)
  if reached > level then
    put_rate(key, reached, at, limit)
    raised = raised + 1
  end
end
return raised
