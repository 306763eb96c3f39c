package tail

import (
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// BenchmarkRead reads a million events of 256 bytes of 1,000 aggregates, over one
// connection, from the beginning and again, and reports events per second. The gaps stay
// open all the time.
func BenchmarkRead(b *testing.B) {
	const events = 1_000_000
	for _, kind := range []string{"plain", "partitioned"} {
		l := newLog(b)
		if kind == "partitioned" {
			if err := outboxsql.Partition(b.Context(), l.Conn, "public", outboxsql.PartitionOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		l.Exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
			SELECT 'order.created', 'order', i % 1000, ('{"text": "' || repeat('x', 244) || '"}')::json
			FROM generate_series(1, $1) i`, events+4000)
		l.Exec(`VACUUM ANALYZE outbox_events`)
		first := testdb.One[int64](l, l.Conn, `SELECT min(id) FROM outbox_events`)
		for _, holes := range []int64{0, 100, 2000} {
			l.Exec(`DELETE FROM outbox_events WHERE id < $1 + 2 * $2::bigint AND (id - $1) % 2 = 0`, first, holes)
			l.Exec(`VACUUM outbox_events`)
			var open idset.Set
			for i := range holes {
				open.Add(idset.Range{From: first + 2*i, To: first + 2*i})
			}
			for _, limit := range []int{100, 1000, 5000} {
				b.Run(fmt.Sprintf("%s/gaps=%d/limit=%d", kind, holes, limit), func(b *testing.B) {
					b.ReportAllocs()
					conn := session.Direct(l.Relay())
					n := 0
					w := NewWriterScanner()
					for b.Loop() {
						r := NewReader(first+4000, open, w)
						for full := true; full; {
							batch, err := r.Read(b.Context(), conn, Query{Limit: limit, Bytes: 16 << 20})
							if err != nil {
								b.Fatal(err)
							}
							n += len(batch.Events)
							full = batch.Full
						}
					}
					b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
				})
			}
		}
	}
}
