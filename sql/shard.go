package outboxsql

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
	return `(pg_catalog.hashtextextended(CASE WHEN octet_length(` + name + `) >= 190 THEN left(` + name + `, 31) ELSE ` + name + ` END COLLATE "C", 0) & 9223372036854775807)`
}

// ShardOf is the shard that an event with this hash belongs to.
func ShardOf(hash int64, shards int) int { return int(hash % int64(shards)) }
