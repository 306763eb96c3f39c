package demo

import (
	"encoding/json"
	"net/smtp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/smtpsink"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, c := range []struct {
		sorted []float64
		p      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.5, 7},
		{[]float64{7}, 0.99, 7},
		{[]float64{1, 2}, 0.5, 1},
		{[]float64{1, 2, 3}, 0.5, 2},
		{[]float64{1, 2, 3}, 0, 1},
		{[]float64{1, 2, 3}, 1, 3},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.991, 100},
	} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("percentile %v of %v: got %v, want %v", c.p, c.sorted, got, c.want)
		}
	}
}

func TestResultOK(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r    Result
		want bool
	}{
		{Result{Orders: 3, Mails: 3}, true},
		{Result{Orders: 3, Mails: 3, RolledBack: 2}, true},
		{Result{Orders: 3, Mails: 4, Duplicates: 1}, true}, // at least once
		{Result{Orders: 3, Mails: 3, Duplicates: 1}, true}, // doubled elsewhere
		{Result{Orders: 3, Mails: 2, Lost: 1}, false},
		{Result{Orders: 3, Mails: 3, Lost: 1, Duplicates: 1}, false},
		{Result{Orders: 3, Mails: 4, Phantoms: 1}, false},
	} {
		if got := c.r.OK(); got != c.want {
			t.Errorf("%+v: got %v", c.r, got)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	placed := map[string]time.Time{"1": {}, "2": {}, "3": {}}
	for _, c := range []struct {
		got  map[string]int
		want Result
	}{
		{map[string]int{"1": 1, "2": 1, "3": 1}, Result{}},
		{nil, Result{Lost: 3}},
		{map[string]int{"1": 3, "2": 1}, Result{Lost: 1, Duplicates: 2}}, // neither hides the other
		{map[string]int{"1": 1, "2": 1, "3": 1, "4": 2}, Result{Phantoms: 2}},
		{map[string]int{"1": 1, "2": 1, "": 1}, Result{Lost: 1, Phantoms: 1}}, // a mail without an order
	} {
		var r Result
		r.count(placed, c.got)
		if r != c.want {
			t.Errorf("%v: got %+v, want %+v", c.got, r, c.want)
		}
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	s := newSightings()
	text := `{"event_type":"a","aggregate_id":"1"}` + "\n" + `{"event_type":"b","aggregate_id":"1"}` + "\nno JSON\n" + `{"event_type":"a","aggregate_id":"1"}` + "\n"
	if n, err := s.journal().Write([]byte(text)); n != len(text) || err != nil {
		t.Fatal(n, err)
	}
	if s.lines[logged{"a", "1"}] != 2 || s.lines[logged{"b", "1"}] != 1 || s.lines[logged{}] != 1 || s.lastLine != `{"event_type":"a","aggregate_id":"1"}` {
		t.Errorf("%v, last %s", s.lines, s.lastLine)
	}
}

// TestBar: the line never wraps, however narrow the terminal is.
func TestBar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		width int
		want  string
	}{
		{80, "[===============               ] half"},
		{20, "[======       ] half"},
		{12, "[==   ] half"},
		{11, "half"},
		{3, "hal"},
		{0, ""},
		{-1, ""},
	} {
		got := bar(c.width, 5, 10, "half")
		if got != c.want || len(got) > max(c.width, 0) {
			t.Errorf("%d columns: got %q, want %q", c.width, got, c.want)
		}
	}
	if got := bar(20, 12, 10, "more"); got != "[=============] more" {
		t.Error(got)
	}
}

// TestResultKeys pins the names that scripts rely on.
func TestResultKeys(t *testing.T) {
	t.Parallel()
	line, err := json.Marshal(Result{Orders: 1, RolledBack: 2, Events: 3, Mails: 4, Lost: 5, Duplicates: 6, P50: 0.5, P99: 9, Phantoms: 10})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"orders":1,"rolled_back":2,"events":3,"mails":4,"lost":5,"duplicates":6,"p50_ms":0.5,"p99_ms":9}`
	if string(line) != want || strings.Contains(string(line), "10") {
		t.Errorf("got %s", line)
	}
}

// TestPhantoms: every delivery for an order that was rolled back is reported.
func TestPhantoms(t *testing.T) {
	t.Parallel()
	sink, err := smtpsink.Start(smtpsink.Options{TLS: smtpsink.NoTLS})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	d := &demo{seen: newSightings(), shop: newShop(nil, "public"), sink: sink}
	d.shop.note("2", time.Time{})
	if r := d.result(); r.Phantoms != 0 || r.RolledBack != 1 || !r.OK() {
		t.Errorf("got %+v", r)
	}
	d.seen.reserved("2", time.Now())
	line := `{"event_type":"` + orderPlaced + `","aggregate_id":"2"}` + "\n"
	if _, err := d.seen.journal().Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
	message := "Subject: " + subjectPrefix + "2\r\n\r\nThank you\r\n"
	if err := smtp.SendMail(sink.Addr(), nil, "shop@example.com", []string{"ann@example.com"}, []byte(message)); err != nil {
		t.Fatal(err)
	}
	if r := d.result(); r.Phantoms != 3 || r.OK() || r.Lost != 0 {
		t.Errorf("got %+v", r)
	}
}
