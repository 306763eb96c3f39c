// Package awsconf fills and checks the settings that the destinations at AWS share.
package awsconf

import (
	"cmp"
	"errors"
	"net/url"
	"regexp"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// defaultRequestTimeout is far above the time of an answer of AWS, some ten
	// milliseconds; getting credentials is part of it.
	defaultRequestTimeout = 15 * time.Second
	// defaultSessionName is seen in CloudTrail.
	defaultSessionName = "notifyd"
)

// WithDefaults returns a copy with every default filled in that needs no environment. at
// is the region in the URL or ARN of the destination, or "".
func WithDefaults(a handlers.AWS, at string) handlers.AWS {
	a.RequestTimeout = cmp.Or(a.RequestTimeout, defaultRequestTimeout)
	if a.AssumeRoleARN != "" {
		a.RoleSessionName = cmp.Or(a.RoleSessionName, defaultSessionName)
	}
	a.Region = cmp.Or(a.Region, at)
	return a
}

var (
	region  = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	roleARN = regexp.MustCompile(`^arn:[a-z0-9-]+:iam::[0-9]{12}:role/.+$`)
	// session matches the session names that STS takes.
	session = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its cure. at is
// the region in the setting called by, "" if it names none. It contacts nothing and reads no files.
func Validate(a handlers.AWS, at, by string) error {
	var errs []error
	if a.Region != "" && !region.MatchString(a.Region) {
		errs = append(errs, field.Errorf("region", "must be a region such as eu-central-1"))
	}
	if a.Region != "" && at != "" && at != a.Region {
		errs = append(errs, field.Errorf("region", "is not that of %s, %s: take it out", by, at))
	}
	if a.Endpoint != "" {
		errs = append(errs, CheckURL("endpoint", a.Endpoint, "https://vpce-0a1b2c.sqs.eu-central-1.vpce.amazonaws.com"))
	}
	return errors.Join(append(errs, credentials(a), field.Timeout("request_timeout", a.RequestTimeout, 0, defaultRequestTimeout))...)
}

func credentials(a handlers.AWS) error {
	var errs []error
	switch {
	case a.AccessKeyID != "" && a.SecretAccessKey.IsZero():
		errs = append(errs, field.Errorf("secret_access_key", "missing: access_key_id needs one, such as ${env:AWS_SECRET}"))
	case a.AccessKeyID == "" && !a.SecretAccessKey.IsZero():
		errs = append(errs, field.Errorf("access_key_id", "missing: secret_access_key needs one"))
	case a.AccessKeyID == "" && !a.SessionToken.IsZero():
		errs = append(errs, field.Errorf("access_key_id", "missing: session_token needs it and secret_access_key"))
	case a.AccessKeyID != "" && a.Profile != "":
		errs = append(errs, field.Errorf("profile", "access_key_id is set too: take one of them out"))
	}

	if a.AssumeRoleARN != "" && !roleARN.MatchString(a.AssumeRoleARN) {
		errs = append(errs, field.Errorf("assume_role_arn", "must be the ARN of a role, such as arn:aws:iam::123456789012:role/notifyd"))
	}
	if a.AssumeRoleARN == "" && !a.ExternalID.IsZero() {
		errs = append(errs, field.Errorf("external_id", "has no effect without assume_role_arn: take it out"))
	}
	if a.AssumeRoleARN == "" && a.RoleSessionName != "" {
		errs = append(errs, field.Errorf("role_session_name", "has no effect without assume_role_arn: take it out"))
	}
	if a.RoleSessionName != "" && !session.MatchString(a.RoleSessionName) {
		errs = append(errs, field.Errorf("role_session_name", "must have 2 to 64 letters, digits and _+=,.@-"))
	}

	return errors.Join(append(errs, tlsconf.Check(a.TLS))...)
}

// CheckURL wants the URL of a server or of a place on it, without a password and a query. The
// error names example, and does not repeat text.
func CheckURL(at, text, example string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "", u.Scheme != "http" && u.Scheme != "https":
		return field.Errorf(at, "must be a URL such as %s", example)
	case u.User != nil:
		return field.Errorf(at, "must not hold a user or a password")
	case u.RawQuery != "" || u.Fragment != "":
		return field.Errorf(at, "must end with its path: take out what follows ? or #")
	default:
		return nil
	}
}
