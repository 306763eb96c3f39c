package queue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/wire"
)

// Where outbox_events is partitioned, by ranges of ids, a list of ids tells
// PostgreSQL nothing about where to look: it would look for each of them in each
// partition. So the statements that are given a list are told its lowest and its
// highest id as well. On a plain table they stay as they are.

// listed is how the statements that take a list of ids begin their condition.
const listed = `id = ANY($1::bigint[])`

// byListOfIDs are the statements whose first parameter is a list of ids of
// events, and how many parameters each has.
func byListOfIDs() map[string]int {
	return map[string]int{
		stmtByIDs: 1, stmtDone: 1, stmtDelete: 1, stmtBury: 1, stmtDefer: 1,
		stmtLock: 1, stmtFinish: 1, stmtForget: 1,
	}
}

// withRange puts the range into the statements, as their second and third
// parameter.
func withRange(statements map[string]string) {
	for name, params := range byListOfIDs() {
		sql := statements[name]
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
