package sqs

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/message"
	"github.com/notifyd/notifyd/handlers/tlsconf"
	"github.com/notifyd/notifyd/internal/secret"
)

const (
	// defaultRequestTimeout is far above the time of an answer of SQS, some ten
	// milliseconds; getting credentials is part of it.
	defaultRequestTimeout = 15 * time.Second
	// defaultSessionName is seen in CloudTrail.
	defaultSessionName = "notifyd"
)

// DefaultLane is how a relay best calls the handler: one batch at a time keeps the order,
// the purpose of FIFO queues.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Timeout: time.Minute}
}

// Config holds the queue for events, and the credentials. Fields marked "template"
// are templates over the event: .Event, .Payload and .Headers.
//
// Credentials and region that are not set here come from the sources of the AWS SDK
// for Go: the environment (AWS_ACCESS_KEY_ID, AWS_REGION, ...), the files
// ~/.aws/config and ~/.aws/credentials, SSO, web identity (EKS), and the roles
// of ECS tasks and EC2 instances.
type Config struct {
	// Queue is the name of the queue. A name that ends in ".fifo" is that of a
	// FIFO queue. Set it, or QueueURL.
	Queue string `json:"queue,omitempty" yaml:"queue,omitempty" jsonschema_description:"Name of the queue; one that ends in .fifo is a FIFO queue. Needs the permission sqs:GetQueueUrl. Set it, or queue_url."`
	// QueueOwner is the account that the queue belongs to, twelve digits, if
	// not that of the credentials.
	QueueOwner string `json:"queue_owner,omitempty" yaml:"queue_owner,omitempty" jsonschema_description:"Account that the queue belongs to, twelve digits, if not that of the credentials."`
	// QueueURL is the URL of the queue, in place of Queue.
	QueueURL string `json:"queue_url,omitempty" yaml:"queue_url,omitempty" jsonschema_description:"URL of the queue, in place of queue: https://sqs.eu-central-1.amazonaws.com/123456789012/orders."`
	// GroupID is the message group (template). The default for FIFO queues is the
	// event's aggregate id, or its type where it has none. On a standard queue a
	// group is for fair queues; the default there is none.
	GroupID string `json:"group_id,omitempty" yaml:"group_id,omitempty" jsonschema_description:"Template of the message group. On a FIFO queue the aggregate id by default, or the event type where there is none; on a standard queue none."`
	message.Config

	// Region is that of the queue; the default is the region in QueueURL, or
	// where the SDK finds one.
	Region string `json:"region,omitempty" yaml:"region,omitempty" jsonschema_description:"Region of the queue, such as eu-central-1; by default that in queue_url, or the one that the AWS SDK finds (AWS_REGION)."`
	// Endpoint is the URL of SQS, in place of AWS: an emulator or a VPC endpoint.
	Endpoint string `json:"endpoint,omitempty" yaml:"endpoint,omitempty" jsonschema_description:"URL of an emulator or a VPC endpoint, in place of AWS."`
	// Profile is one of ~/.aws/config and ~/.aws/credentials.
	Profile string `json:"profile,omitempty" yaml:"profile,omitempty" jsonschema_description:"Profile of ~/.aws/config to take credentials and region from."`
	// AccessKeyID and SecretAccessKey are static credentials. Set both or none.
	AccessKeyID     string        `json:"access_key_id,omitempty" yaml:"access_key_id,omitempty" jsonschema_description:"Static credentials, with secret_access_key; by default those that the AWS SDK finds."`
	SecretAccessKey secret.String `json:"secret_access_key,omitzero" yaml:"secret_access_key,omitempty" jsonschema_description:"Secret of access_key_id, best as ${env:NAME} or ${file:PATH}."`
	// SessionToken belongs to static credentials that are temporary.
	SessionToken secret.String `json:"session_token,omitzero" yaml:"session_token,omitempty" jsonschema_description:"Session token, where the static credentials are temporary."`
	// AssumeRoleARN is a role to take on with these credentials.
	AssumeRoleARN string `json:"assume_role_arn,omitempty" yaml:"assume_role_arn,omitempty" jsonschema_description:"Role to take on with the credentials that there are: arn:aws:iam::123456789012:role/notifyd."`
	// ExternalID is the external id that the trust policy of the role may ask for.
	ExternalID secret.String `json:"external_id,omitzero" yaml:"external_id,omitempty" jsonschema_description:"External id that the trust policy of the role asks for."`
	// RoleSessionName is seen in CloudTrail; the default is "notifyd".
	RoleSessionName string `json:"role_session_name,omitempty" yaml:"role_session_name,omitempty" jsonschema_description:"Name of the session under the role, as CloudTrail shows it; notifyd by default."`
	// TLS is for an Endpoint with a certificate of its own; nil is the system's
	// authorities.
	TLS *tlsconf.Config `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Which certificates to trust and to show, for an endpoint or proxy with its own."`
	// RequestTimeout bounds one request of up to ten messages, connecting and
	// credentials included. The default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty" jsonschema_description:"Longest time for one request of up to ten messages, connecting and credentials included; below timeout. 15s by default."`
}

// WithDefaults returns a copy with every default filled in that needs no
// environment.
func (c Config) WithDefaults() Config {
	c.Config = c.Config.WithDefaults()
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	if c.AssumeRoleARN != "" {
		c.RoleSessionName = cmp.Or(c.RoleSessionName, defaultSessionName)
	}
	c.Region = cmp.Or(c.Region, regionOf(c.QueueURL))
	return c
}

// Within returns how long one request may take before the handler gives up on it.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }
