package console

import (
	"cmp"
	"math"
	"net/http"
	"slices"

	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/observe"
)

type overviewBody struct {
	Base     string
	Problems []problem
	Charts   []chart
	Lanes    []laneRow
	Dead     []deadRow // the largest groups of dead letters, the largest first
	Oldest   *observe.Waiting
	ReadOnly bool
}

// laneRow is the row of a destination.
type laneRow struct {
	Name, Link             string
	State, Class           string
	DeliveredRate, FailedR float64
	Waiting, Dead          observe.Count
	Known                  bool // the two above are
	WaitingLink, DeadLink  string
}

// deadShown bounds the groups of dead letters on the overview.
const deadShown = 5

// deadRow is a group of dead letters of a destination with the same error.
type deadRow struct {
	observe.DeadGroup

	Destination, Link string
}

func (o *outbox) overview(w http.ResponseWriter, r *http.Request, v viewer) error {
	p := o.newPage("Overview", "overview", v, o.overviewOf(o.sampler.now(r.Context()), o.readOnly(v)))
	p.Live = "overview"
	p.Done = pauseText(r.URL.Query())
	return o.render(w, http.StatusOK, "overview", p)
}

func (o *outbox) overviewOf(s snapshot, readOnly bool) overviewBody {
	b := overviewBody{Base: o.base, Problems: o.problems(s), ReadOnly: readOnly}

	get := func(of func(point) float64) []float64 { return column(s.points, of) }
	b.Charts = []chart{
		newChart("Delivered", "good", perSecond, series{"", get(func(p point) float64 { return p.delivered })}),
		newChart("Failed calls", "bad", perSecond, series{"", get(func(p point) float64 { return p.failed })}),
		newChart("Latency", "slow", duration,
			series{"p99", get(func(p point) float64 { return p.p99 })},
			series{"p50", get(func(p point) float64 { return p.median })}),
		newChart("Waiting", "wait", eventCount, series{"", get(func(p point) float64 { return p.waiting })}),
	}

	known := s.known()
	for _, d := range s.stats.Destinations {
		row := laneRow{
			Name:        d.Name,
			Link:        o.destinationPath(d.Name),
			Known:       known,
			WaitingLink: o.waitingPath(d.Name),
			DeadLink:    o.deadPath(d.Name),
		}
		row.DeliveredRate, row.FailedR = o.rates(s, d.Name)

		waits := s.reading.backlog.Destination(d.Name)
		row.State, row.Class = stateOf(d, !known || remain(&waits))
		row.Waiting = waits.Waiting()
		row.Dead = waits.Dead
		b.Lanes = append(b.Lanes, row)
	}
	if known {
		b.Oldest = s.reading.backlog.Oldest
		b.Dead = o.deadOf(&s.reading.backlog)
	}

	return b
}

// deadOf returns the largest groups of dead letters of all destinations.
func (o *outbox) deadOf(b *observe.Backlog) (rows []deadRow) {
	for _, d := range b.Destinations {
		for _, g := range d.DeadLetters {
			rows = append(rows, deadRow{g, d.Name, o.deadPath(d.Name)})
		}
	}
	slices.SortStableFunc(rows, func(a, b deadRow) int { return cmp.Compare(b.N, a.N) })

	return rows[:min(len(rows), deadShown)]
}

// rates are the rates of the last ten seconds; NaN if no relay counts.
func (o *outbox) rates(s snapshot, name string) (delivered, failed float64) {
	if o.unrelayed {
		return math.NaN(), math.NaN()
	}

	const window = 10
	list := s.lanes[name]
	list = list[max(0, len(list)-window):]
	for _, p := range list {
		delivered += p.delivered
		failed += p.failed
	}

	n := math.Max(1, float64(len(list)))
	return delivered / n, failed / n
}

// remain reports whether an event is left that failures may have been about.
func remain(b *observe.DestinationBacklog) bool { return b.Waiting().Plus(b.Dead).N > 0 }

// stateOf returns the word and the class of a state. remain reports that an event is left that failures may have been about.
func stateOf(d observe.DestinationStats, remain bool) (text, class string) {
	switch {
	case d.Paused:
		return status.StatePaused, "paused"
	case d.Down && d.Stuck > 0 && d.Trouble.DownSince.IsZero():
		return status.StateStuck, "bad"
	case d.Down:
		return status.StateDown, "bad"
	case d.State == observe.BreakerRamping, d.State == observe.BreakerThrottled:
		return d.State.String(), "warn"
	case d.Report != nil && d.Report.Blocked:
		return status.StateBlocked, "warn"
	case d.Trouble.Failures > 0 && remain:
		return status.StateFailing, "bad"
	case d.RateLimited:
		return status.StateLimited, "warn"
	default:
		return status.StateUp, "good"
	}
}
