package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
	"sync"
	"time"
)

// Result is the result of [Run]. Times are milliseconds from the return of the order's
// COMMIT to the call of the handler.
type Result struct {
	Orders     int     `json:"orders"`      // committed
	RolledBack int     `json:"rolled_back"` // orders
	Events     int     `json:"events"`      // committed with the orders
	Mails      int     `json:"mails"`       // received, one for each order
	Lost       int     `json:"lost"`        // deliveries that are missing
	Duplicates int     `json:"duplicates"`  // repeated deliveries
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`

	// Phantoms are deliveries for orders that were rolled back.
	Phantoms int `json:"-"`
}

// OK reports whether no event was lost and none was delivered for an order that was rolled
// back. Duplicates are allowed: events are delivered at least once.
func (r Result) OK() bool { return r.Lost == 0 && r.Phantoms == 0 }

// logged has the fields of a line of the log destination that the demo reads.
type logged struct {
	EventType   string `json:"event_type"`
	AggregateID string `json:"aggregate_id"`
}

// sightings are the deliveries at each destination.
type sightings struct {
	mu       sync.Mutex
	handled  map[string][]time.Time // order -> calls of the custom handler
	lines    map[logged]int
	lastLine string
}

func newSightings() *sightings {
	return &sightings{handled: make(map[string][]time.Time), lines: make(map[logged]int)}
}

func (s *sightings) reserved(order string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handled[order] = append(s.handled[order], at)
}

// journal is the writer of the log handler; the demo counts its lines.
func (s *sightings) journal() io.Writer { return journal{s} }

type journal struct{ s *sightings }

func (j journal) Write(p []byte) (int, error) {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()

	for line := range strings.Lines(string(p)) {
		var l logged
		_ = json.Unmarshal([]byte(line), &l) // an unreadable line belongs to no order
		j.s.lines[l]++
		j.s.lastLine = strings.TrimSuffix(line, "\n")
	}
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
			// The handler may be called before COMMIT has returned to the writer.
			ms := max(0, calls[0].Sub(committed).Seconds()*1000)
			all = append(all, math.Round(ms*1000)/1000)
		}
	}

	sort.Float64s(all)
	return all
}

// percentile returns the smallest value that at least the share p of all values does not exceed, or 0 without values.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(float64(len(sorted))*p)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// result counts the deliveries, separately for each destination.
func (d *demo) result() Result {
	latencies := d.latencies()

	d.shop.mu.Lock()
	defer d.shop.mu.Unlock()
	d.seen.mu.Lock()
	defer d.seen.mu.Unlock()

	r := Result{
		Orders:     len(d.shop.placed),
		RolledBack: len(d.shop.rolledBack),
		Events:     len(d.shop.placed) * eventsPerOrder,
		P50:        percentile(latencies, 0.50),
		P99:        percentile(latencies, 0.99),
	}

	mailed := make(map[string]int)
	for _, m := range d.sink.Mails() {
		r.Mails++
		order := ""
		if msg, err := m.Parse(); err == nil {
			order = strings.TrimPrefix(msg.Subject, subjectPrefix)
		}
		mailed[order]++
	}

	handled := make(map[string]int)
	for order, calls := range d.seen.handled {
		handled[order] = len(calls)
	}

	logs := map[string]map[string]int{orderPlaced: {}, stockReserved: {}}
	for l, times := range d.seen.lines {
		if of := logs[l.EventType]; of != nil {
			of[l.AggregateID] = times
		} else {
			r.Phantoms += times
		}
	}

	for _, got := range []map[string]int{mailed, handled, logs[orderPlaced], logs[stockReserved]} {
		r.count(d.shop.placed, got)
	}
	return r
}

// count compares the committed orders with the number of times each of them arrived at one destination.
func (r *Result) count(placed map[string]time.Time, got map[string]int) {
	for order := range placed {
		if got[order] == 0 {
			r.Lost++
		} else {
			r.Duplicates += got[order] - 1
		}
	}

	for order, times := range got {
		if _, ok := placed[order]; !ok {
			r.Phantoms += times
		}
	}
}

// progress rewrites the progress line.
func (d *demo) progress() {
	if d.Width == nil {
		return
	}

	text := fmt.Sprintf("%d/%d orders, %d rolled back, %d mails, p50 %.2f ms",
		d.shop.committed(), d.Orders, d.shop.refused(), len(d.sink.Mails()), percentile(d.latencies(), 0.50))
	d.say("%s%s", clearLine, bar(d.Width()-1, d.shop.committed(), d.Orders, text))
}

// clearLine goes to the first column and empties the line.
const clearLine = "\r\x1b[K"

// bar returns a bar with text behind it, in at most width columns: a line that wraps
// cannot be rewritten. The text is ASCII.
func bar(width, done, all int, text string) string {
	const widest, narrowest = 30, 5
	room := min(widest, width-len(text)-len("[] "))
	if room < narrowest {
		return text[:min(max(width, 0), len(text))]
	}

	filled := min(room, room*done/all)
	return "[" + strings.Repeat("=", filled) + strings.Repeat(" ", room-filled) + "] " + text
}

func (d *demo) report(r Result) {
	if d.Width != nil {
		d.say(clearLine)
	}

	if mails := d.sink.Mails(); len(mails) > 0 {
		d.say("\nthe first mail, as received:\n\n%s\n", indent(string(mails[0].Data)))
	}

	d.seen.mu.Lock()
	line := d.seen.lastLine
	d.seen.mu.Unlock()
	if line != "" {
		d.say("the last line of the log destination:\n\n%s\n", indent(line))
	}

	d.say("orders       %6d\nrolled back  %6d   nothing left for these: %d\nevents       %6d\n"+
		"mails        %6d\nlost         %6d\nduplicates   %6d\n",
		r.Orders, r.RolledBack, r.Phantoms, r.Events, r.Mails, r.Lost, r.Duplicates)
	d.say("commit -> handler  p50 %.2f ms, p99 %.2f ms\n", r.P50, r.P99)
	d.say("lost=%d duplicates=%d mails=%d orders=%d\n", r.Lost, r.Duplicates, r.Mails, r.Orders)
}

func indent(s string) string {
	lines := strings.Split(strings.ReplaceAll(strings.TrimRight(s, "\r\n"), "\r\n", "\n"), "\n")
	return "    " + strings.Join(lines, "\n    ") + "\n"
}
