package kinesis

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kinesis/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// The limits of PutRecords. See
// https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html.
const (
	maxEntries = 500
	// maxRequest is the size limit of a request of several records, in bytes. AWS takes
	// 10 MiB; it took half of that for years, as emulators still do.
	maxRequest = 5 << 20
	// maxRecord is the most for a record with its key. A stream's own limit is 1 MiB unless
	// it was raised.
	maxRecord = 10 << 20
	maxKey    = 256 // characters
)

// encoder makes records of events. It is safe for concurrent use.
type encoder struct {
	message *message.Encoder
	key     *tmpl.Template // nil: the aggregate id
}

func newEncoder(cfg Config) (*encoder, error) {
	m, err := message.New(cfg.Message, message.Kafka()) // a record has no headers
	if err != nil {
		return nil, err
	}
	key, err := awsapi.Template(tmpl.Key, "partition_key", cfg.PartitionKey)
	if err != nil {
		return nil, err
	}
	return &encoder{message: m, key: key}, nil
}

// encode makes the record for an event. Its errors are about the event: another
// attempt would end the same way.
func (e *encoder) encode(ev *delivery.Event) (types.PutRecordsRequestEntry, int, error) {
	var in types.PutRecordsRequestEntry
	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, nil); err != nil {
		return in, 0, err
	}

	if len(m.Body) == 0 {
		return in, 0, errors.New("the record is empty: Kinesis requires a byte at least")
	}

	key, err := e.keyOf(ev)
	if err != nil {
		return in, 0, err
	}

	size := len(m.Body) + len(key)
	if size > maxRecord {
		return in, 0, fmt.Errorf("the record has %d bytes with its key: Kinesis takes %d", size, maxRecord)
	}

	in.Data = m.Body
	in.PartitionKey = aws.String(key)
	return in, size, nil
}

func (e *encoder) keyOf(ev *delivery.Event) (string, error) {
	key := cmp.Or(ev.AggregateID, ev.DedupeID())
	if e.key != nil {
		data, err := tmpl.NewData(ev)
		if err != nil {
			return "", err
		}
		key, err = e.key.Render(data)
		if err != nil {
			return "", err
		}
		if key == "" {
			return "", errors.New(`template "partition_key" yields nothing: fix the event, or the template`)
		}
	}

	if utf8.ValidString(key) && utf8.RuneCountInString(key) <= maxKey {
		return key, nil
	}

	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
