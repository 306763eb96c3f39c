package queue

import (
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/wire"
)

// Where outbox_events is partitioned by ranges of ids, a list of ids does not tell PostgreSQL which
// partitions to search: it would search each partition for each id. So the statements that take a
// list get its lowest and its highest id as well. On a plain table they stay as they are.

// listed is the beginning of the condition of statements that take a list of ids.
const listed = `id = ANY($1::bigint[])`

// withRange adds the range to the statements whose one parameter is a list of event ids, as their second and third.
func withRange(statements map[string]string) {
	for _, name := range []string{stmtByIDs, stmtDone, stmtDelete, stmtBury, stmtDefer, stmtLock, stmtFinish, stmtForget} {
		sql, is := statements[name]
		if !is {
			continue
		}
		before, after, _ := strings.Cut(sql, listed)
		alias := ""
		if strings.HasSuffix(before, "e.") {
			alias = "e."
		}
		statements[name] = before + listed + " AND " + alias + "id >= $2::bigint AND " + alias + "id <= $3::bigint" + after
	}
}

// byID returns the first parameters of a statement that takes a list of ids.
func (s *Session) byID(list []byte, ids []int64) [][]byte {
	if !s.ranged {
		return [][]byte{list}
	}
	if len(ids) == 0 {
		return [][]byte{list, wire.Int8(0), wire.Int8(0)}
	}
	return [][]byte{list, wire.Int8(slices.Min(ids)), wire.Int8(slices.Max(ids))}
}
