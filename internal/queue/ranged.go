package queue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/wire"
)

// Where outbox_events is partitioned by ranges of ids, a list of ids does not tell PostgreSQL which
// partitions to search: it would search each partition for each id. So the statements that take a
// list get its lowest and its highest id as well. On a plain table they stay as they are.

// listed is the beginning of the condition of statements that take a list of ids.
const listed = `id = ANY($1::bigint[])`

// byListOfIDs returns the statements whose first parameter is a list of event ids, and how many
// parameters each has.
func byListOfIDs() map[string]int {
	return map[string]int{
		stmtByIDs: 1, stmtDone: 1, stmtDelete: 1, stmtBury: 1, stmtDefer: 1,
		stmtLock: 1, stmtFinish: 1, stmtForget: 1,
	}
}

// withRange adds the range to the statements, as their second and third parameters.
func withRange(statements map[string]string) {
	for name, params := range byListOfIDs() {
		sql, is := statements[name]
		if !is {
			continue
		}
		for n := params; n > 1; n-- {
			sql = strings.ReplaceAll(sql, fmt.Sprintf("$%d::", n), fmt.Sprintf("$%d::", n+2))
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
