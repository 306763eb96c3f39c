package sqs

import (
	"errors"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/handlers/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

const fifoSuffix = ".fifo"

var (
	// queueName matches the names that SQS takes; the suffix counts.
	queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)
	account   = regexp.MustCompile(`^[0-9]{12}$`)
	region    = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	roleARN   = regexp.MustCompile(`^arn:[a-z0-9-]+:iam::[0-9]{12}:role/.+$`)
	// session matches the session names that STS takes.
	session = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
	// sqsHost finds the region in the host of a queue's URL.
	sqsHost = regexp.MustCompile(`^sqs(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com|amazonaws\.com\.cn|api\.aws)$`)
)

// Validate returns all mistakes at once, joined, each as a field.Error with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	_, err := parseGroup(c)
	return errors.Join(c.place(), c.credentials(), c.limits(), c.Config.Validate(), err)
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
		errs = append(errs, field.Errorf("queue", "is an ARN: give the name behind its last colon, and the account before that as queue_owner"))
	case len(c.Queue) > 80 || !queueName.MatchString(strings.TrimSuffix(c.Queue, fifoSuffix)):
		errs = append(errs, field.Errorf("queue", "must have 1 to 80 letters, digits, hyphens and underscores, and may end in %s", fifoSuffix))
	}
	if c.QueueOwner != "" && !account.MatchString(c.QueueOwner) {
		errs = append(errs, field.Errorf("queue_owner", "must be an account of twelve digits, in quotes"))
	}
	if c.QueueOwner != "" && c.QueueURL != "" {
		errs = append(errs, field.Errorf("queue_owner", "is in queue_url already: take it out"))
	}
	if c.Region != "" && !region.MatchString(c.Region) {
		errs = append(errs, field.Errorf("region", "must be a region such as eu-central-1"))
	}
	if at := regionOf(c.QueueURL); c.Region != "" && at != "" && at != c.Region {
		errs = append(errs, field.Errorf("region", "is not that of queue_url, %s: take it out", at))
	}
	if c.Endpoint != "" {
		errs = append(errs, checkURL("endpoint", c.Endpoint, "https://vpce-0a1b2c.sqs.eu-central-1.vpce.amazonaws.com"))
	}
	return errors.Join(errs...)
}

func checkQueueURL(text string) error {
	const example = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
	if err := checkURL("queue_url", text, example); err != nil {
		return err
	}
	if name := nameIn(text); !queueName.MatchString(strings.TrimSuffix(name, fifoSuffix)) {
		return field.Errorf("queue_url", "must end with the name of a queue, such as %s", example)
	}
	return nil
}

func checkURL(at, text, example string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return field.Errorf(at, "must be a URL such as %s", example)
	case u.User != nil:
		return field.Errorf(at, "must not hold a user or a password")
	case u.RawQuery != "" || u.Fragment != "":
		return field.Errorf(at, "must end with its path: take out what follows ? or #")
	default:
		return nil
	}
}

// nameIn returns the name of the queue in a URL.
func nameIn(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Path == "" {
		return ""
	}
	return path.Base(u.Path)
}

// regionOf returns the region in a queue's URL, "" if there is none.
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

func (c Config) fifo() bool { return strings.HasSuffix(c.name(), fifoSuffix) }

func (c Config) credentials() error {
	var errs []error
	switch {
	case c.AccessKeyID != "" && c.SecretAccessKey.IsZero():
		errs = append(errs, field.Errorf("secret_access_key", "missing: access_key_id needs one, such as ${env:AWS_SECRET}"))
	case c.AccessKeyID == "" && !c.SecretAccessKey.IsZero():
		errs = append(errs, field.Errorf("access_key_id", "missing: secret_access_key needs one"))
	case c.AccessKeyID == "" && !c.SessionToken.IsZero():
		errs = append(errs, field.Errorf("access_key_id", "missing: session_token needs it and secret_access_key"))
	case c.AccessKeyID != "" && c.Profile != "":
		errs = append(errs, field.Errorf("profile", "access_key_id is set too: take one of them out"))
	}
	if c.AssumeRoleARN != "" && !roleARN.MatchString(c.AssumeRoleARN) {
		errs = append(errs, field.Errorf("assume_role_arn", "must be the ARN of a role, such as arn:aws:iam::123456789012:role/notifyd"))
	}
	if c.AssumeRoleARN == "" && !c.ExternalID.IsZero() {
		errs = append(errs, field.Errorf("external_id", "has no effect without assume_role_arn: take it out"))
	}
	if c.AssumeRoleARN == "" && c.RoleSessionName != "" {
		errs = append(errs, field.Errorf("role_session_name", "has no effect without assume_role_arn: take it out"))
	}
	if c.RoleSessionName != "" && !session.MatchString(c.RoleSessionName) {
		errs = append(errs, field.Errorf("role_session_name", "must have 2 to 64 letters, digits and _+=,.@-"))
	}
	return errors.Join(append(errs, tlsconf.Check(c.TLS))...)
}

func (c Config) limits() error {
	return field.Timeout("request_timeout", c.RequestTimeout, 0, defaultRequestTimeout)
}

// parseGroup returns the template of the message group, nil if there is none.
func parseGroup(c Config) (*tmpl.Template, error) {
	if c.GroupID == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	t, err := tmpl.Text("group_id", c.GroupID)
	if err != nil {
		return nil, field.Errorf("group_id", "%w", err)
	}
	return t, nil
}
