package awstest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsevents "github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
)

// Bus is an event bus of the emulator, with a rule that writes all of its events to a log.
type Bus struct {
	Name, ARN string
	endpoint  string
	group     string
}

// NewBus makes a bus.
func NewBus(tb testing.TB, endpoint string) *Bus {
	tb.Helper()
	b := &Bus{Name: Name(), endpoint: endpoint}
	b.group = "/aws/events/" + b.Name

	client := awsevents.NewFromConfig(Config(endpoint))
	made, err := client.CreateEventBus(Context(tb), &awsevents.CreateEventBusInput{Name: aws.String(b.Name)})
	if err != nil {
		tb.Fatal(err)
	}

	b.ARN = aws.ToString(made.EventBusArn)
	b.logs(tb, "CreateLogGroup", map[string]any{"logGroupName": b.group}, nil)
	_, err = client.PutRule(Context(tb), &awsevents.PutRuleInput{
		Name:         aws.String("all"),
		EventBusName: aws.String(b.Name),
		EventPattern: aws.String(`{"region": ["` + Region + `"]}`),
	})
	if err != nil {
		tb.Fatal(err)
	}

	log := strings.Replace(b.ARN, ":events:", ":logs:", 1)
	log = log[:strings.LastIndex(log, ":")] + ":log-group:" + b.group
	out, err := client.PutTargets(Context(tb), &awsevents.PutTargetsInput{
		Rule:         aws.String("all"),
		EventBusName: aws.String(b.Name),
		Targets:      []types.Target{{Id: aws.String("log"), Arn: aws.String(log)}},
	})
	if err != nil || out.FailedEntryCount > 0 {
		tb.Fatal(out, err)
	}

	return b
}

// logs calls CloudWatch Logs. Its client would be a module for this call only. The emulator takes the region from the
// signature, and does not check it.
func (b *Bus) logs(tb testing.TB, operation string, in, out any) {
	tb.Helper()

	body, err := json.Marshal(in)
	if err != nil {
		tb.Fatal(err)
	}

	r, err := http.NewRequestWithContext(Context(tb), http.MethodPost, b.endpoint, strings.NewReader(string(body)))
	if err != nil {
		tb.Fatal(err)
	}

	r.Header.Set("Content-Type", "application/x-amz-json-1.1")
	r.Header.Set("X-Amz-Target", "Logs_20140328."+operation)
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/"+Region+"/logs/aws4_request, "+
		"SignedHeaders=host, Signature=0")

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		tb.Fatal(err)
	}

	defer answer.Body.Close() //nolint:errcheck // it was only read from
	if answer.StatusCode != http.StatusOK {
		tb.Fatalf("%s: %s", operation, answer.Status)
	}

	if out != nil {
		if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
			tb.Fatal(err)
		}
	}
}

// Arrived is an event as a rule sees it.
type Arrived struct {
	Source     string
	DetailType string `json:"detail-type"`
	Time       string
	Resources  []string
	Detail     json.RawMessage
}

// Header returns the value of the resource that begins with the name, or "".
func (a Arrived) Header(name string) string {
	for _, r := range a.Resources {
		if value, ok := strings.CutPrefix(r, name+":"); ok {
			return value
		}
	}
	return ""
}

// Events returns all events so far.
func (b *Bus) Events(tb testing.TB) []Arrived {
	tb.Helper()
	var all []Arrived
	token := ""
	for {
		in := map[string]any{"logGroupName": b.group, "limit": 10_000}
		if token != "" {
			in["nextToken"] = token
		}
		var out struct {
			Events    []struct{ Message string }
			NextToken string
		}

		b.logs(tb, "FilterLogEvents", in, &out)
		for _, e := range out.Events {
			var a Arrived
			if err := json.Unmarshal([]byte(e.Message), &a); err != nil {
				tb.Fatal(fmt.Errorf("%w: %s", err, e.Message))
			}
			all = append(all, a)
		}

		token = out.NextToken
		if token == "" {
			return all
		}
	}
}
