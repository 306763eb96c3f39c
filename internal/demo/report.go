package demo

import (
	"bytes"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"time"
)

// Result is what came of a demo. Times are milliseconds from the return of the
// order's COMMIT to the call of the handler.
type Result struct {
	Orders     int     `json:"orders"`      // committed
	RolledBack int     `json:"rolled_back"` // and these were not
	Events     int     `json:"events"`      // committed with the orders
	Mails      int     `json:"mails"`       // received, one for each order
	Lost       int     `json:"lost"`        // deliveries that should have been and were not
	Duplicates int     `json:"duplicates"`  // deliveries of something delivered before
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`

	// Phantoms are mails for orders that were rolled back.
	Phantoms int `json:"-"`
}

// OK reports whether all went as it should.
func (r Result) OK() bool { return r.Lost == 0 && r.Phantoms == 0 && r.Mails == r.Orders+r.Duplicates }

// sightings are what the destinations were given.
type sightings struct {
	mu       sync.Mutex
	handled  map[string][]time.Time // order -> calls of the custom handler
	lines    int
	lastLine string
}

func newSightings() *sightings { return &sightings{handled: make(map[string][]time.Time)} }

func (s *sightings) reserved(order string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handled[order] = append(s.handled[order], at)
}

// journal is where the log handler writes; the demo counts its lines.
func (s *sightings) journal() io.Writer { return journal{s} }

type journal struct{ s *sightings }

func (j journal) Write(p []byte) (int, error) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	j.s.lines += bytes.Count(p, []byte("\n"))
	lines := strings.Split(strings.TrimSpace(string(p)), "\n")
	j.s.lastLine = lines[len(lines)-1]
	return len(p), nil
}

// latencies returns the sorted times from commit to handler, in milliseconds.
func (d *demo) latencies() []float64 {
	d.shop.mu.Lock()
	defer d.shop.mu.Unlock()
	d.seen.mu.Lock()
	defer d.seen.mu.Unlock()
	var all []float64
	for order, calls := range d.seen.handled {
		if committed, ok := d.shop.placed[order]; ok {
			// The relay may hear of a commit before its writer does.
			all = append(all, max(0, calls[0].Sub(committed).Seconds()*1000))
		}
	}
	sort.Float64s(all)
	return all
}

// percentile returns the smallest value that at least the share p of all is
// not above, 0 of none.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(float64(len(sorted))*p+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (d *demo) result() Result {
	lat := d.latencies()
	r := Result{
		Orders: d.shop.committed(), RolledBack: d.shop.refused(), P50: percentile(lat, 0.50), P99: percentile(lat, 0.99),
	}
	r.Events = r.Orders * eventsPerOrder
	mailed := make(map[string]int)
	for _, m := range d.sink.Mails() {
		r.Mails++
		if msg, err := m.Parse(); err == nil {
			mailed[strings.TrimPrefix(msg.Subject, "Your order ")]++
		}
	}
	d.seen.mu.Lock()
	defer d.seen.mu.Unlock()
	for order := range d.shop.placed {
		r.count(mailed[order])
		r.count(len(d.seen.handled[order]))
	}
	for order := range d.shop.rolledBack {
		r.Phantoms += mailed[order] + len(d.seen.handled[order])
	}
	if extra := d.seen.lines - r.Events; extra >= 0 {
		r.Duplicates += extra
	} else {
		r.Lost -= extra
	}
	return r
}

// count takes how often something was delivered that should have been once.
func (r *Result) count(times int) {
	if times == 0 {
		r.Lost++
	} else {
		r.Duplicates += times - 1
	}
}

// progress rewrites the line that shows how far the demo is.
func (d *demo) progress() {
	if !d.Live {
		return
	}
	lat := d.latencies()
	const width = 30
	filled := min(width, width*d.shop.committed()/d.Orders)
	fmt.Fprintf(d.Out, "\r\x1b[K[%s%s] %d/%d orders, %d rolled back, %d mails, commit -> handler p50 %.2f ms",
		strings.Repeat("=", filled), strings.Repeat(" ", width-filled),
		d.shop.committed(), d.Orders, d.shop.refused(), len(d.sink.Mails()), percentile(lat, 0.50))
}

// report prints the first mail and the sums.
func (d *demo) report(r Result) {
	if d.Live {
		fmt.Fprint(d.Out, "\r\x1b[K")
	}
	if mails := d.sink.Mails(); len(mails) > 0 {
		fmt.Fprintf(d.Out, "\nthe first mail, as received:\n\n%s\n", indent(string(mails[0].Data)))
	}
	d.seen.mu.Lock()
	line := d.seen.lastLine
	d.seen.mu.Unlock()
	fmt.Fprintf(d.Out, "the last line of the log destination:\n\n%s\n", indent(line))
	fmt.Fprintf(d.Out, "orders       %6d\nrolled back  %6d   nothing left for these: %d\nevents       %6d\nmails        %6d\nlost         %6d\nduplicates   %6d\n",
		r.Orders, r.RolledBack, r.Phantoms, r.Events, r.Mails, r.Lost, r.Duplicates)
	fmt.Fprintf(d.Out, "commit -> handler  p50 %.2f ms, p99 %.2f ms\n", r.P50, r.P99)
	fmt.Fprintf(d.Out, "lost=%d duplicates=%d mails=%d orders=%d\n", r.Lost, r.Duplicates, r.Mails, r.Orders)
}

func indent(s string) string {
	lines := strings.Split(strings.ReplaceAll(strings.TrimRight(s, "\r\n"), "\r\n", "\n"), "\n")
	return "    " + strings.Join(lines, "\n    ") + "\n"
}

// invite says how to play with what is still running.
func (d *demo) invite() {
	cfg := d.pool.Config().ConnConfig
	fmt.Fprintf(d.Out, "\nstill running, until Ctrl-C. Insert an event of your own and see the mail arrive at %s:\n\n", d.sink.Addr())
	fmt.Fprintf(d.Out, "  psql -h %s -p %d -U %s -d %s -c \"INSERT INTO %s.outbox_events (event_type, payload) VALUES ('%s', '{\\\"order\\\": 1, \\\"email\\\": \\\"you@example.com\\\", \\\"total_cents\\\": 999}')\"\n",
		cfg.Host, cfg.Port, cfg.User, cfg.Database, d.schema, orderPlaced)
	fmt.Fprintf(d.Out, "  psql -h %s -p %d -U %s -d %s -c \"SELECT id, event_type, state, processed_at - created_at AS took FROM %s.outbox_events ORDER BY id DESC LIMIT 5\"\n\n",
		cfg.Host, cfg.Port, cfg.User, cfg.Database, d.schema)
}
