//go:build testall

package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
)

// miniature are options for a test.
func miniature(t *testing.T, url string) (o VariantsOptions, report func() string) {
	t.Helper()
	brokers := testenv.Kafka(t)
	common, out := options(t, url)
	return VariantsOptions{
		Options: common, Events: 2000, Payload: 256, Keys: 50, Batch: 100, Writers: 4, Seconds: 1, OpenSeconds: 1, Brokers: brokers,
	}, out.String
}

// TestVariants: every variant delivers its backlog with each number of workers. Events that it must not lose or reorder
// are neither lost nor reordered, even with writers and open transactions.
func TestVariants(t *testing.T) {
	t.Parallel()
	for _, who := range contenders() {
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
			o, report := miniature(t, url)
			o.Only = []string{who.name}
			r, err := Variants(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Variants) != 1 || !r.OK() || !strings.Contains(report(), who.about) {
				t.Fatalf("result %+v", r)
			}
			checkVariant(t, who, r.Variants[0])
			checkEmpty(t, o.DatabaseURL)
		})
	}
}

// checkVariant checks the figures of a variant that do not depend on the machine.
func checkVariant(t *testing.T, who contender, v VariantResult) {
	t.Helper()
	rounds := variantWorkers
	if who.most > 0 {
		rounds = who.most
	}
	if len(v.Drains) != rounds || len(v.Order) != rounds || len(v.Open) != len(Foreigns()) || v.Writers == nil {
		t.Fatalf("%d drains, %d orders, %d open transactions", len(v.Drains), len(v.Order), len(v.Open))
	}
	for _, d := range v.Drains {
		if d.Lost != 0 || d.Duplicates != 0 || d.Seconds <= 0 || d.WorkerCPU <= 0 {
			t.Errorf("drain %+v", d)
		}
		// One worker keeps the order of a backlog in any way but a queue.
		if d.Workers == 1 && d.OutOfOrder != 0 && who.name != "queue" {
			t.Errorf("drain %+v", d)
		}
	}
	if v.Writers.InsertsPerSecond <= 0 {
		t.Errorf("writers %+v", *v.Writers)
	}
	for _, o := range v.Order {
		if o.Written == 0 {
			t.Errorf("order %+v", o)
		}
	}
	loses := who.name == "advisory" // it passes what commits late
	for _, counts := range v.tallies() {
		if counts.Lost != 0 && !loses {
			t.Errorf("lost events: %+v", v)
		}
		if counts.OutOfOrder != 0 && (who.inOrder || who.name == "serialised") {
			t.Errorf("events out of order: %+v", v)
		}
	}
	// The event of the transaction that stayed open is below those delivered meanwhile.
	if here := v.Open[slices.Index(Foreigns(), ForeignHere)]; loses && here.Lost == 0 {
		t.Errorf("%s lost nothing beside an open transaction: %+v", who.name, here)
	}
}

// TestVariantsOptions: invalid options are refused before a server is started.
func TestVariantsOptions(t *testing.T) {
	t.Parallel()
	good := VariantsOptions{Events: 1, Payload: 1, Keys: 1, Batch: 1, Writers: 1, Seconds: 1, OpenSeconds: 1}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*VariantsOptions){
		"at least 1":            func(o *VariantsOptions) { o.Batch = 0 },
		`no variant "listener"`: func(o *VariantsOptions) { o.Only = []string{"listener"} },
		`no part "crash"`:       func(o *VariantsOptions) { o.Parts = []string{"crash"} },
	} {
		o := good
		change(&o)
		if _, err := Variants(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestVariantsOK: only what notifyd loses, or a stream delivers out of order, is a failure.
func TestVariantsOK(t *testing.T) {
	t.Parallel()
	lost, late := Counts{Lost: 1}, Counts{OutOfOrder: 1}
	for name, test := range map[string]struct {
		v    VariantResult
		want bool
	}{
		"other, lost":          {VariantResult{Drains: []VariantDrain{{Counts: lost}}}, true},
		"queue, out of order":  {VariantResult{Notifyd: true, Order: []VariantOrder{{Counts: late}}}, true},
		"queue, lost":          {VariantResult{Notifyd: true, Open: []VariantOpen{{Counts: lost}}}, false},
		"stream, out of order": {VariantResult{Notifyd: true, inOrder: true, Writers: &VariantWriters{Counts: late}}, false},
		"stream, twice":        {VariantResult{Notifyd: true, inOrder: true, Order: []VariantOrder{{Counts: Counts{Duplicates: 1}}}}, true},
	} {
		if got := (VariantsResult{Variants: []VariantResult{test.v}}).OK(); got != test.want {
			t.Errorf("%s: OK is %v", name, got)
		}
	}
}

// TestFindings: losses, repeats and disorder are told apart.
func TestFindings(t *testing.T) {
	t.Parallel()
	f := newFindings([]int64{3, 2, 0})
	fill := filling(256)
	for _, r := range []struct {
		aggregate string
		n         int64
	}{
		{"free-0", 1}, {"free-0", 0}, // the second is late
		{"free-0", 0}, {"free-0", 1}, // repeats, which are never late
		{"free-1", 0}, {"free-1", 5}, // nobody has committed the second
		{"free-2", 0}, {"free-9", 0}, {"else", 0},
	} {
		value := numbered(r.n, fill)
		if len(value) != 256 {
			t.Fatalf("a payload of %d bytes", len(value))
		}
		f.note(r.aggregate, []byte(value))
	}
	f.note("free-0", []byte(`{"n":2}`)) // not one of ours
	if want := (Counts{Lost: 2, Duplicates: 7, OutOfOrder: 1}); f.total() != want {
		t.Errorf("got %+v, want %+v", f.total(), want)
	}
}
