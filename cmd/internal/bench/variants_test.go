//go:build testall

package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestVariants: every variant delivers its backlog with each number of workers. Events that it must not lose or reorder
// are neither lost nor reordered, even with writers and open transactions.
func TestVariants(t *testing.T) {
	t.Parallel()
	for _, who := range ways() {
		t.Run(who.name, func(t *testing.T) {
			t.Parallel()
			// An open transaction of another test on the server would keep these from being read.
			alone := who.name == "partitions"
			var url string
			if alone {
				url = testenv.OwnPostgres(t, nil).URL("")
			} else {
				url = testenv.Database(t)
			}
			r, err := Measure(t.Context(), options(t, url), &Variants{
				Only: []string{who.name}, Brokers: testenv.Kafka(t),
				Events: 2000, Batch: 100, Seconds: 1, OpenSeconds: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Columns) != 1 || !r.OK() {
				t.Fatalf("result %+v", r)
			}
			checkVariant(t, who, r.Columns[0].Figures)
			checkEmpty(t, url)
		})
	}
}

// checkVariant checks the figures of a variant that do not depend on the machine.
func checkVariant(t *testing.T, who *way, figures map[string]float64) {
	t.Helper()
	positive := []string{"16 writers: inserts/s"}
	zero := []string{}
	for _, n := range who.workerCounts() {
		drain := fmt.Sprintf("%d at work: ", n)
		positive = append(positive, drain+"seconds", drain+"workers, CPU s", "commits out of order, "+drain+"events")
		zero = append(zero, drain+"lost", drain+"duplicates")
	}
	if who.name != "queue" {
		zero = append(zero, "1 at work: out of order") // one worker keeps the order of a backlog in any way but a queue
	}
	loses := who.name == "advisory" // it passes what commits late
	for name := range figures {
		if strings.HasSuffix(name, ": lost") && !loses || strings.HasSuffix(name, ": out of order") && (who.inOrder || who.name == "serialised") {
			zero = append(zero, name)
		}
	}
	for _, name := range positive {
		if figures[name] <= 0 {
			t.Errorf("%s is %v", name, figures[name])
		}
	}
	for _, name := range zero {
		if value, ok := figures[name]; !ok || value != 0 {
			t.Errorf("%s is %v, known: %v", name, value, ok)
		}
	}
	// The event of the transaction that stayed open is below those delivered meanwhile.
	if here := "open, written here: lost"; loses && figures[here] == 0 {
		t.Errorf("%s lost nothing beside an open transaction", who.name)
	}
}

// TestFindings: losses, repeats and disorder are told apart.
func TestFindings(t *testing.T) {
	t.Parallel()
	f := newFindings([]int64{3, 2, 0})
	for _, r := range []struct {
		aggregate string
		n         int64
	}{
		{"free-0", 1}, {"free-0", 0}, // the second is late
		{"free-0", 0}, {"free-0", 1}, // repeats, which are never late
		{"free-1", 0}, {"free-1", 5}, // nobody has committed the second
		{"free-2", 0}, {"free-9", 0}, {"else", 0},
	} {
		f.note(r.aggregate, []byte(numbered(r.n, "filling")))
	}
	f.note("free-0", []byte(`{"n":2}`)) // not one of ours
	if want := (Faults{Lost: 2, Duplicates: 7, OutOfOrder: 1}); f.counts != want {
		t.Errorf("got %+v, want %+v", f.counts, want)
	}
}
