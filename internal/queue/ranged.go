package queue

import (
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/wire"
)

// If outbox_events is partitioned by id ranges, a list of ids does not tell PostgreSQL which partitions to search: it
// would search each partition for each id. So statements with a list also get its lowest and highest id. For a plain
// table they do not.

// listed is the condition of statements with a list of ids.
const listed = `id = ANY($1::bigint[])`

// withRange adds the range of ids as the second and third parameter to statements whose only parameter is a list of
// event ids.
func withRange(statements map[string]string) {
	for _, name := range []string{stmtByIDs, stmtDone, stmtDelete, stmtBury, stmtDefer, stmtLock, stmtFinish, stmtForget, stmtFinished} {
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

// byID returns the first parameters of a statement with a list of ids.
func (s *Session) byID(list []byte, ids []int64) [][]byte {
	if !s.ranged {
		return [][]byte{list}
	}
	if len(ids) == 0 {
		return [][]byte{list, wire.Int8(0), wire.Int8(0)}
	}
	return [][]byte{list, wire.Int8(slices.Min(ids)), wire.Int8(slices.Max(ids))}
}
