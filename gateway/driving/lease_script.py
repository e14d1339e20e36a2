"""The script by which gateways lease parts of tenants' limits from the store. It is atomic, and has the only clock.

    KEYS   a sorted set of the limits in use, by the time since when; then one hash a limit
    ARGV   version, gateway, number of gateways, whether it leaves, milliseconds of joining and of a shortage, since
           when limits in use are asked for (server's time); then 11 values for each limit

A hash has the `level` of a limit at a time `at`, with all that gateways hold of it. It has a field for each gateway:
the end of its lease, what it holds, its demand, and its use so far. The use is a running sum, so that a row that is
sent twice counts once.

Each gateway gets an equal part of a full bucket, and a part by its demand of an empty one. Where that is less than a
request needs, the first to ask gets it. If nobody can, all parts go by demand for a while, so that idle gateways let
go.

A gateway that did not renew counts as if it had used all that it held, until it says otherwise. It has used nothing
else of a quota, which does not refill. Where ended requests free the limit (`gauge`), it counts as gone. Its field is
deleted two minutes after its lease has lapsed: it knows its own use if it comes back.

Gateways may use their equal part before they know that a limit is in use. So a new limit leaves it to them for the time
of joining. A limit that is full and of which nobody asks anything is forgotten.
"""

from __future__ import annotations

from typing import Final

SCRIPT: Final = """
local function text(number) return string.format('%.17g', number) end
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local version, me, gateways = ARGV[1], 'g:' .. ARGV[2], tonumber(ARGV[3])
local leaves, join_ms, short_ms = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - 32 * 86400000))
local out = {text(now), redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[7], '+inf')}
for i = 2, #KEYS do
  local key, n = KEYS[i], {}
  for j = 1, 11 do n[j] = tonumber(ARGV[7 + (i - 2) * 11 + j]) end
  local burst, per_ms, gauge, used, last, hand, demand, need, level, lease_ms, keep_ms = unpack(n)
  local row, h = redis.pcall('HGETALL', key), {}
  if not row.err then
    for j = 1, #row, 2 do h[row[j]] = row[j + 1] end
  end
  if row.err then
    out[i + 1] = {row.err}
  elseif h.v and h.v ~= version then
    out[i + 1] = {'its value has version ' .. h.v .. ', this gateway reads ' .. version}
  elseif not h.v and (leaves or (demand == 0 and used == last)) then
    redis.call('ZREM', KEYS[1], key)
    out[i + 1] = {'idle'}
  else
    local born, held, wanted, count, refill = now, 0, 0, 1, 0
    if h.v then
      born, level = tonumber(h.born), tonumber(h.level) + burst - tonumber(h.burst)
      refill = math.max(0, now - tonumber(h.at)) * per_ms
    else
      redis.call('ZADD', KEYS[1], text(now), key)
    end
    for field, value in pairs(h) do
      if string.sub(field, 1, 2) == 'g:' then
        local untl, its, asks, uses = string.match(value, '^(%S+) (%S+) (%S+) (%S+)$')
        untl, its, uses = tonumber(untl), tonumber(its), tonumber(uses)
        if field == me then
          last = (gauge == 1 or untl >= now) and uses or math.max(last, uses)
        elseif untl >= now then
          held, wanted, count = held + its, wanted + tonumber(asks), count + 1
        elseif untl < now - math.min(keep_ms, 120000) then
          redis.call('HDEL', key, field)
        elseif its > 0 or gauge * uses > 0 then
          local lost = gauge == 1 and -uses or (per_ms > 0 and its or 0)
          level = level - lost
          redis.call('HSET', key, field, table.concat({text(untl), '0', '0', text(uses + lost)}, ' '))
        end
      end
    end
    level = math.min(burst, math.min(burst, level + refill) - used + last)
    local all = math.max(gateways, count)
    if leaves then
      redis.call('HDEL', key, me)
      level = text(math.min(burst, level + gauge * used))
      redis.call('HSET', key, 'level', level, 'at', text(now), 'burst', text(burst))
      out[i + 1] = {'idle'}
    elseif demand + wanted < 0.001 and level >= burst and per_ms + gauge > 0 then
      redis.call('DEL', key)
      redis.call('ZREM', KEYS[1], key)
      out[i + 1] = {'idle'}
    else
      if now - born < join_ms then held = held + (all - count) * burst / all end
      local full, part, short = math.max(0, level / burst), 1 / all, tonumber(h.short or 0)
      if now - short < short_ms then full = 0 end
      if wanted + demand > 0 then part = full / all + (1 - full) * demand / (wanted + demand) end
      local grant = math.max(0, math.min(math.floor(part * level), level - held))
      if grant < need and demand > 0.01 then
        grant = level - held >= need and need or 0
        if grant == 0 then short = now end
      end
      redis.call('HSET', key, 'v', version, 'level', text(level), 'at', text(now), 'burst', text(burst),
        'born', text(born), 'short', text(short), me,
        table.concat({text(now + lease_ms), text(math.max(grant, hand)), text(demand), text(used)}, ' '))
      redis.call('PEXPIRE', key, keep_ms)
      out[i + 1] = {'', text(grant), text(level), text(math.max(part, 0.001))}
    end
  end
end
return out
"""
