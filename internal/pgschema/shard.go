package pgschema

import "fmt"

// Hash returns an SQL expression for the hash that assigns an event to a shard of its destination: shard hash % n of n,
// from 0. prefix is the alias of outbox_events with a dot, or empty. All events of an aggregate have the same hash: the
// hash of their ordering key, see dispatch.OrderingKey. Events without an aggregate are spread by id. PostgreSQL's hash
// of a text is the same in all versions, because hash-partitioned tables outlive an upgrade.
func Hash(prefix string) string {
	return fmt.Sprintf(`(CASE WHEN coalesce(%[1]saggregate_id, '') = '' THEN %[1]sid & 9223372036854775807
		ELSE `+HashOfName(`(coalesce(%[1]saggregate_type, '') || '/' || %[1]saggregate_id)`)+` END)`, prefix)
}

// HashOfName returns an expression for the hash of an aggregate with this name, NULL without one. Of a long name only the beginning
// counts, which the shortened one in outbox_deliveries has, too.
func HashOfName(name string) string {
	counts := `CASE WHEN octet_length(` + name + `) >= 190 THEN left(` + name + `, 31) ELSE ` + name + ` END`
	return `(pg_catalog.hashtextextended(` + counts + ` COLLATE "C", 0) & 9223372036854775807)`
}

// NumberOfRow returns an expression for the number of the shard that has a row d of outbox_deliveries, if its destination has
// n shards: from 1, or 0 with one shard. All rows of an aggregate are in one shard; a row whose event is missing has the
// aggregate's name. The aggregates of a replay stay with the first shard, which sends it. events is the table of events.
func NumberOfRow(events, n string) string {
	return fmt.Sprintf(`(CASE WHEN %[1]s = 1 THEN 0 WHEN %[2]s THEN 1
		ELSE 1 + coalesce((SELECT %[3]s FROM %[4]s AS e WHERE e.id = d.event_id), %[5]s, d.event_id) %% %[1]s END)`,
		n, isOfReplay("d.ordering_key"), Hash("e."), events, HashOfName(`nullif(d.ordering_key, '*')`))
}

// NumberOfName is [NumberOfRow] for the rows of a named aggregate, with more than one shard.
func NumberOfName(name string, n int) string {
	return fmt.Sprintf(`(CASE WHEN %s THEN 1 ELSE 1 + %s %% %d END)`, isOfReplay(name), HashOfName(name), n)
}

// isOfReplay returns the condition that a name is one of a replay: see internal/replay.
func isOfReplay(name string) string {
	return name + ` ~ '^#[^/]*$' AND octet_length(` + name + `) < 190`
}

// ShardOf is the shard that an event with this hash belongs to.
func ShardOf(hash int64, shards int) int { return int(hash % int64(shards)) }
