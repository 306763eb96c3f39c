package deliveries

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// TestCanceledSearchIsDivided: PostgreSQL cancels reads that take too long. The search goes on with shorter spans, without
// a hole between them, until a span cannot be shorter.
func TestCanceledSearchIsDivided(t *testing.T) {
	t.Parallel()
	now := time.Now()
	server := pgtype.Timestamptz{Time: now.Add(-time.Hour), Valid: true}
	d := NewDueSearch()
	d.Next(now)
	if !d.Canceled() || d.inSpan || d.End().At.InfinityModifier != pgtype.Infinity {
		t.Fatalf("the first read is not divided: %+v", d)
	}
	if !d.Reached(now, server, time.Minute) {
		t.Fatal("no span follows")
	}

	for range 5 {
		d.Next(now)
		d.Read(0, nil)
		low := d.span.low
		if !d.SpanEnded(now) || d.span.high != low {
			t.Fatalf("after a span that begins at %v comes %+v", low, d.span)
		}
	}
	high := d.span.high
	for d.length > firstSpan {
		length := d.length
		d.Next(now)
		if !d.Canceled() || d.length >= length || d.span.high != high {
			t.Fatalf("a span of %v is divided into %v: %+v", length, d.length, d.span)
		}
	}
	d.Next(now)
	if d.length != firstSpan || d.Canceled() {
		t.Errorf("a span of %v is divided", d.length)
	}

	d.Read(2*slowSearch, nil)
	for more := true; more; {
		d.Next(now)
		d.Read(0, nil)
		more = d.SpanEnded(now)
	}
	if d.length != firstSpan {
		t.Errorf("after a slow search, the next one begins with a span of %v", d.length)
	}
}

// TestRestoredSearch: pages follow each other by the time that they take. A search that has ended, or was canceled, begins
// anew after a pause.
func TestRestoredSearch(t *testing.T) {
	t.Parallel()
	var r RestoredSearch
	if !r.IsDue(time.Now()) {
		t.Error("the first page waits")
	}
	r.Read(0, "order/7")
	if r.After != "order/7" || !r.IsDue(time.Now()) {
		t.Errorf("after a page: %+v", r)
	}
	r.Read(time.Hour, "order/8")
	if r.IsDue(time.Now().Add(restoredShare*time.Hour - time.Minute)) {
		t.Errorf("after a slow page: %+v", r)
	}
	r.Read(0, "")
	if r.After != "" || r.IsDue(time.Now().Add(restoredEvery/2)) || !r.IsDue(time.Now().Add(restoredEvery)) {
		t.Errorf("after the last page: %+v", r)
	}
	r.After = "order/7"
	r.Canceled()
	if r.After != "" || !r.IsDue(time.Now().Add(restoredAgain)) {
		t.Errorf("after a cancellation: %+v", r)
	}
}
