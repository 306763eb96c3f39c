package sqs

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/internal/lab/testenv/awstest"
)

// TestMain keeps the tests away from whatever AWS this machine knows.
func TestMain(m *testing.M) {
	awstest.Main(m)
}

const (
	maxBytes   = awsapi.MaxMessage
	fifoSuffix = awsapi.FIFO
)

// config is a complete configuration but for the queue.
func config(endpoint string) Config { return Config{AWS: awstest.Access(endpoint)} }

// sent is a request to the fake, as far as tests check it.
type sent struct {
	operation string
	Entries   []struct{ ID, MessageBody, MessageGroupID, MessageDeduplicationID string }
}

func read(a awstest.Asked) sent {
	s := sent{operation: a.Operation}
	if err := json.Unmarshal(a.Body, &s); err != nil && a.Operation != "" {
		panic(err)
	}
	return s
}

// startFake starts an SQS that answers what answer returns. The nth request is number 0.
func startFake(tb testing.TB, answer func(n int, s sent) awstest.Said) *awstest.Fake {
	tb.Helper()
	return awstest.StartFake(tb, func(n int, a awstest.Asked) awstest.Said { return answer(n, read(a)) })
}

func asked(f *awstest.Fake) []sent {
	var all []sent
	for _, a := range f.Asked() {
		all = append(all, read(a))
	}
	return all
}

// taken is the answer to a request whose messages are all taken but for those
// of failed, by number of the entry.
func taken(s sent, failed map[int]string) awstest.Said {
	var ok, bad []string
	for i, e := range s.Entries {
		if failure := failed[i]; failure != "" {
			bad = append(bad, fmt.Sprintf(`{"Id":%q,%s}`, e.ID, failure))
			continue
		}
		ok = append(ok, fmt.Sprintf(`{"Id":%q,"MessageId":"m","MD5OfMessageBody":%q}`, e.ID, md5Of(e.MessageBody)))
	}
	return awstest.Said{Body: fmt.Sprintf(`{"Successful":[%s],"Failed":[%s]}`, strings.Join(ok, ","), strings.Join(bad, ","))}
}

// fakeConfig is a configuration for the fake, with a queue by URL.
func fakeConfig(f *awstest.Fake, name string) Config {
	cfg := config(f.URL)
	cfg.QueueURL = f.URL + "/123456789012/" + name
	return cfg
}

func md5Of(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}
