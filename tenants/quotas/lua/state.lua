-- How full a tenant's buckets are. KEYS: the tenant's open reservations. ARGV: the tag, the plan.
-- Answers MessagePack, flat: now, then per bucket whether it is there, used, held, ms until it is new.

local open, tag, plan, now = KEYS[1], ARGV[1], cmsgpack.unpack(ARGV[2]), clock()
expire(tag, open, now, 100)
local answer = {now}
local keys, values = buckets_of(tag, plan)
for b = 1, #keys do
  local i, value = b * 4 - 3, values[b]
  local kind, limit = plan[i + 1], plan[i + 3]
  local there, used, held, reset = value and 1 or 0, 0, 0, 0
  if kind == RATE or kind == CONTRACT then
    there = 1
    local level = drained(keys[b], value, now, limit)
    used = ceil(level / UNIT)
    reset = limit > 0 and ceil(level / limit) or 0
  elseif kind == HELD then
    there = 1
    held = value and struct.unpack('<d', value) or 0
  else
    local first, finish = window_of(kind, now)
    if value then
      local began
      began, used, held = struct.unpack('<ddd', value)
      if began < first then used, held = 0, 0 end
    end
    reset = finish - now
  end
  for _, number in ipairs({there, used, held, reset}) do answer[#answer + 1] = number end
end
return cmsgpack.pack(answer)
