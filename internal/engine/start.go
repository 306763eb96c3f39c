package engine

import (
	"errors"
	"strconv"
	"time"
)

// Start is where a destination of a stream without a position begins. The zero value is the beginning for the first
// destinations of a table, and now for later ones.
type Start struct {
	// Kind selects the field that counts.
	Kind StartKind
	// ID is the first event of StartAtID, or the next existing one.
	ID int64
	// Time selects the first event of StartAtTime: of that time or later.
	Time time.Time
}

// StartKind is a kind of start.
type StartKind uint8

// The kinds of starts.
const (
	StartDefault StartKind = iota
	// StartAtBeginning is the first stored event. In a stream that was a queue, the queue may have delivered it, while
	// StartDefault begins behind the delivered events.
	StartAtBeginning
	// StartNow is after the last assigned id. An event whose id was drawn earlier, and whose transaction commits later,
	// is not delivered.
	StartNow
	StartAtID
	StartAtTime
)

// startAuto is the text of the zero value.
const startAuto = "auto"

// errStart lists the valid starts.
var errStart = errors.New(`use beginning, now, the id of an event, or a time such as 2026-11-01T00:00:00Z`)

// ParseStart reads "beginning", "now", an id of 1 or more, or a time of RFC 3339. "auto" and an empty text mean the
// zero value.
func ParseStart(text string) (Start, error) {
	switch text {
	case "", startAuto:
		return Start{}, nil
	case "beginning":
		return Start{Kind: StartAtBeginning}, nil
	case "now":
		return Start{Kind: StartNow}, nil
	}

	if id, err := strconv.ParseInt(text, 10, 64); err == nil && id > 0 {
		return Start{Kind: StartAtID, ID: id}, nil
	}

	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return Start{}, errStart
	}

	return Start{Kind: StartAtTime, Time: t}, nil
}

// String returns the text that [ParseStart] reads; "auto" for the zero value.
func (s Start) String() string {
	switch s.Kind {
	case StartAtBeginning:
		return "beginning"
	case StartNow:
		return "now"
	case StartAtID:
		return strconv.FormatInt(s.ID, 10)
	case StartAtTime:
		return s.Time.Format(time.RFC3339Nano)
	default:
		return startAuto
	}
}
