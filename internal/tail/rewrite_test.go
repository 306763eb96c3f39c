package tail

import (
	"fmt"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// TestRewrite: the read that ends a gap waits while another session rewrites the table, and finds the event. pg_repack, as some
// forms of ALTER TABLE, writes all rows as its own transaction: a snapshot from before its end has none of them.
func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, partitioned := range []bool{false, true} {
		t.Run(fmt.Sprint("partitioned ", partitioned), func(t *testing.T) {
			t.Parallel()
			kind := tables()
			kind.Partitioned = partitioned
			d := stream(testdb.New(t, kind))
			rd := follow(d, 0, nil)
			rd.scan() // which finds the partitions
			writer := d.Dial()
			d.On(writer, `BEGIN`)
			id := testdb.One[int64](t, writer, insert+` RETURNING id`)
			next := testdb.One[int64](t, d.Conn, insert+` RETURNING id`)
			if ids, _ := rd.read(Query{}); !slices.Equal(ids, []int64{next}) || !rd.Gaps().Contains(id) {
				t.Fatalf("read %v and left %v, want %d and a gap with %d", ids, rd.Gaps(), next, id)
			}
			rd.scan()
			d.On(writer, `COMMIT`)

			table := testdb.One[string](t, d.Conn, `SELECT tableoid::regclass::text FROM outbox_events WHERE id = $1`, id)
			rewriter := d.Dial()
			d.On(rewriter, `BEGIN`)
			d.On(rewriter, `LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
			rd.scan() // the writer has ended: the next read decides
			rd.Begin(t.Context(), rd.on, Query{Limit: 1000})
			testenv.Await(t, "a read that waits for the lock", func() bool {
				return testdb.One[bool](t, d.Conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass)`, table)
			})
			d.On(rewriter, `ALTER TABLE `+table+` SET UNLOGGED`)
			d.On(rewriter, `COMMIT`)
			b, err := rd.Take()
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Events) != 1 || b.Events[0].ID != id {
				t.Errorf("read %d events and left %v, want event %d", len(b.Events), rd.Gaps(), id)
			}
		})
	}
}
