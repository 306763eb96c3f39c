package sqs

import (
	"errors"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/handlers/internal/awsconf"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

var (
	// queueName matches the names that SQS takes; the suffix counts.
	queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)
	account   = regexp.MustCompile(`^[0-9]{12}$`)
	// sqsHost finds the region in the host of a queue's URL.
	sqsHost = regexp.MustCompile(`^sqs(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com|amazonaws\.com\.cn|api\.aws)$`)
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	_, err := awsapi.Template(tmpl.Key, "group_id", c.GroupID)
	return errors.Join(c.place(), awsconf.Validate(c.AWS, regionOf(c.QueueURL), "queue_url"), message.Validate(c.Message), err)
}

// place checks the name and the location of the queue.
func (c Config) place() error {
	var errs []error
	switch {
	case c.Queue == "" && c.QueueURL == "":
		errs = append(errs, field.Errorf("queue", "missing: name the queue, or give queue_url"))
	case c.Queue != "" && c.QueueURL != "":
		errs = append(errs, field.Errorf("queue_url", "queue is set too: take one of them out"))
	case c.QueueURL != "":
		errs = append(errs, checkQueueURL(c.QueueURL))
	case strings.Contains(c.Queue, "://"):
		errs = append(errs, field.Errorf("queue", "is a URL: it belongs into queue_url"))
	case strings.HasPrefix(c.Queue, "arn:"):
		errs = append(errs, field.Errorf("queue", "is an ARN: give the name behind its last colon, and the account "+
			"before that as queue_owner"))
	case len(c.Queue) > 80 || !queueName.MatchString(strings.TrimSuffix(c.Queue, awsapi.FIFO)):
		errs = append(errs, field.Errorf("queue", "must have 1 to 80 letters, digits, hyphens and underscores, and "+
			"may end in %s", awsapi.FIFO))
	}

	if c.QueueOwner != "" && !account.MatchString(c.QueueOwner) {
		errs = append(errs, field.Errorf("queue_owner", "must be an account of twelve digits, in quotes"))
	}

	if c.QueueOwner != "" && c.QueueURL != "" {
		errs = append(errs, field.Errorf("queue_owner", "is in queue_url already: take it out"))
	}

	return errors.Join(errs...)
}

func checkQueueURL(text string) error {
	const example = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
	if err := awsconf.CheckURL("queue_url", text, example); err != nil {
		return err
	}
	if name := nameIn(text); !queueName.MatchString(strings.TrimSuffix(name, awsapi.FIFO)) {
		return field.Errorf("queue_url", "must end with the name of a queue, such as %s", example)
	}
	return nil
}

// nameIn returns the name of the queue in a URL.
func nameIn(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Path == "" {
		return ""
	}
	return path.Base(u.Path)
}

// regionOf returns the region in a queue's URL, or "" for a URL without a
// region.
func regionOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	if m := sqsHost.FindStringSubmatch(u.Hostname()); m != nil {
		return m[1]
	}
	return ""
}

// name returns the name of the queue.
func (c Config) name() string {
	if c.Queue != "" {
		return c.Queue
	}
	return nameIn(c.QueueURL)
}

func (c Config) fifo() bool { return strings.HasSuffix(c.name(), awsapi.FIFO) }
