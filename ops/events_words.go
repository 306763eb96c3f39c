package ops

import (
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/limit"
)

// Phrase is a piece of a sentence: text, or a moment that the reader's program formats.
type Phrase struct {
	Text string
	At   time.Time
}

// Words describes the delivery in English, beyond its state and its error; now is the time of the request.
func (d *Destination) Words(now time.Time) []Phrase {
	all := d.words(now)
	if t := d.Throttled; t != nil {
		what := ", throttled until "
		if d.Name == "" {
			what = ", " + t.Destination + " is throttled until "
		}
		all = append(all, Phrase{Text: what}, Phrase{At: t.Until}, Phrase{Text: fmt.Sprintf(" by the answer to event %d", t.ByEvent)})
	}

	switch names := strings.Join(d.Reports, ", "); len(d.Reports) {
	case 0:
	case 1:
		all = append(all, Phrase{Text: ", reports the dead letter of " + names})
	default:
		all = append(all, Phrase{Text: ", reports the dead letters of " + names})
	}

	return all
}

// words is Words without the reports.
func (d *Destination) words(now time.Time) []Phrase {
	text := func(format string, args ...any) []Phrase { return []Phrase{{Text: fmt.Sprintf(format, args...)}} }
	switch d.State {
	case Waiting, Fresh:
		return d.due(now)
	case Dead:
		return append(moment("given up ", d.Since), Phrase{Text: " after " + d.counts()})
	case Running:
		return append(moment("under way since ", d.Since), Phrase{Text: ", after " + d.counts()})
	case Discarded:
		return append(moment("", d.Since), Phrase{Text: " by " + d.Actor})
	case Parked:
		if d.Behind == nil {
			return text("waits for its turn: no earlier event of its aggregate is stored; " +
				"in a total order it waits for the first stored event of any aggregate")
		}
		return text("behind event %d of its aggregate (%s)", d.Behind.EventID, d.Behind.State)

	case Unrouted:
		return text("no route matches its type; it waits for one")
	case Unread:
		if d.Name == "" {
			return text("no destination has begun to read this stream")
		}
		return text("the destination has not reached it yet")

	case Open:
		return text("not acknowledged yet: under way, or waiting for its turn")
	case Filtered:
		return text("by when of its route, as it is configured now: %s", d.Condition)
	case NotRouted:
		return text("no route sends such events to this destination")
	case Passed:
		if len(d.Drops) > 0 {
			return text("past it: acknowledged, or not sent because of %s, which is not stored", strings.Join(d.Drops, " or "))
		}
		return text("past it: the routes of that time are not stored, nor whether it was sent")

	case Skipped:
		return text("the destination begins behind it by its start_from, or its position was moved past it")
	case Delivered:
		if d.Since != nil {
			return moment("", d.Since)
		}
		return nil

	case Unknown:
		if d.Name != "" {
			return append(moment("replayed ", d.Since), Phrase{Text: ", and the delivery was removed without an acknowledgement"})
		}
		return text("the event is marked as deferred, and no delivery of it is stored: a row was deleted by hand")

	default:
		return nil
	}
}

// due describes when a delivery is tried next.
func (d *Destination) due(now time.Time) (all []Phrase) {
	tried := d.Attempts > 0 || d.Error != ""
	switch later := d.NextTry != nil && d.NextTry.After(now); {
	case later && tried:
		all = moment("next try ", d.NextTry)
	case later:
		all = moment("delayed until ", d.NextTry)
	case d.State == Fresh:
		return []Phrase{{Text: "not tried yet, or its first attempt is under way"}}
	default:
		all = []Phrase{{Text: "due now"}}
	}

	if tried {
		last := "failed last "
		if d.Error == limit.Waits {
			last = "held back last "
		}
		all = append(append(all, Phrase{Text: ", "}), append(moment(last, d.Since), Phrase{Text: ", " + d.counts()})...)
	}

	return all
}

// counts describes the attempts and the replays of a delivery. A fault of the destination is not an
// attempt.
func (d *Destination) counts() string {
	text := plural(d.Attempts, "attempt")
	if d.Attempts == 0 {
		text = "no attempt that counts"
	}
	if d.Replays > 0 {
		text += ", replayed " + plural(d.Replays, "time")
	}

	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func moment(before string, at *time.Time) []Phrase {
	if at == nil {
		return []Phrase{{Text: before + "at a time that is not stored"}}
	}
	return []Phrase{{Text: before}, {At: *at}}
}
