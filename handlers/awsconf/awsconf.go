// Package awsconf holds the settings that the destinations at AWS share: region,
// endpoint, credentials, and the time for a request.
package awsconf

import (
	"cmp"
	"errors"
	"net/url"
	"regexp"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// defaultRequestTimeout is far above the time of an answer of AWS, some ten
	// milliseconds; getting credentials is part of it.
	defaultRequestTimeout = 15 * time.Second
	// defaultSessionName is seen in CloudTrail.
	defaultSessionName = "notifyd"
)

// Access holds the settings by which a destination connects to AWS. Credentials and
// region that are not set here come from the sources of the AWS SDK for Go: the
// environment (AWS_ACCESS_KEY_ID, AWS_REGION, ...), the files ~/.aws/config and
// ~/.aws/credentials, SSO, web identity (EKS), and the roles of ECS tasks and EC2
// instances.
type Access struct {
	// Region is the region of the destination; the default is the region in its URL or
	// ARN, or the one that the SDK finds.
	Region string `json:"region,omitempty" yaml:"region,omitempty" jsonschema_description:"Region, such as 'eu-central-1'." unset:"the region in the URL or ARN of the destination, or the AWS SDK's"`
	// Endpoint is the URL of the service, in place of AWS: an emulator or a VPC endpoint.
	Endpoint string `json:"endpoint,omitempty" yaml:"endpoint,omitempty" jsonschema_description:"URL of an emulator or a VPC endpoint." kind:"URL" unset:"AWS"`
	// Profile is one of ~/.aws/config and ~/.aws/credentials.
	Profile string `json:"profile,omitempty" yaml:"profile,omitempty" jsonschema_description:"Profile of '~/.aws/config' with credentials and region." unset:"the AWS SDK's"`
	// AccessKeyID and SecretAccessKey are static credentials. Set both or none.
	// [handlers.NewSecret] makes the SecretAccessKey.
	AccessKeyID     string          `json:"access_key_id,omitempty" yaml:"access_key_id,omitempty" jsonschema_description:"Static credentials, with 'secret_access_key'." unset:"the AWS SDK's"`
	SecretAccessKey handlers.Secret `json:"secret_access_key,omitzero" yaml:"secret_access_key,omitempty" jsonschema_description:"Secret of 'access_key_id'." unset:"the AWS SDK's"`
	// SessionToken belongs to static credentials that are temporary. [handlers.NewSecret] makes the SessionToken.
	SessionToken handlers.Secret `json:"session_token,omitzero" yaml:"session_token,omitempty" jsonschema_description:"Session token, where the static credentials are temporary."`
	// AssumeRoleARN is a role to take on with these credentials.
	AssumeRoleARN string `json:"assume_role_arn,omitempty" yaml:"assume_role_arn,omitempty" jsonschema_description:"Role to assume with those credentials: 'arn:aws:iam::123456789012:role/notifyd'."`
	// ExternalID is the external id that the trust policy of the role may ask for.
	// [handlers.NewSecret] makes the ExternalID.
	ExternalID handlers.Secret `json:"external_id,omitzero" yaml:"external_id,omitempty" jsonschema_description:"External id that the role's trust policy requires."`
	// RoleSessionName is seen in CloudTrail; the default is "notifyd".
	RoleSessionName string `json:"role_session_name,omitempty" yaml:"role_session_name,omitempty" jsonschema_description:"Name of the role's session, as CloudTrail shows it." unset:"'notifyd'"`
	// TLS is for an Endpoint with a private certificate; nil trusts the
	// system's authorities.
	TLS *tlsconf.Config `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Certificates to trust and to present, for an endpoint or proxy with its own." unset:"the system's certificates"`
	// RequestTimeout bounds one request, connecting and credentials included. The
	// default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty" jsonschema_description:"Longest time for one request, connecting and credentials included."`
}

// WithDefaults returns a copy with every default filled in that needs no environment. at
// is the region in the URL or ARN of the destination, or "".
func (a Access) WithDefaults(at string) Access {
	a.RequestTimeout = cmp.Or(a.RequestTimeout, defaultRequestTimeout)
	if a.AssumeRoleARN != "" {
		a.RoleSessionName = cmp.Or(a.RoleSessionName, defaultSessionName)
	}
	a.Region = cmp.Or(a.Region, at)
	return a
}

// Within returns how long one request may take before the handler gives up on it.
func (a Access) Within() time.Duration { return a.WithDefaults("").RequestTimeout }

var (
	region  = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	roleARN = regexp.MustCompile(`^arn:[a-z0-9-]+:iam::[0-9]{12}:role/.+$`)
	// session matches the session names that STS takes.
	session = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its cure. at is
// the region in the setting called by, "" if it names none. It contacts nothing and reads no files.
func (a Access) Validate(at, by string) error {
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
	return errors.Join(append(errs, a.credentials(), field.Timeout("request_timeout", a.RequestTimeout, 0, defaultRequestTimeout))...)
}

func (a Access) credentials() error {
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
