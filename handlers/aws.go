package handlers

import "time"

// AWS holds the settings by which a destination connects to AWS. Credentials and
// region that are not set here come from the sources of the AWS SDK for Go: the
// environment (AWS_ACCESS_KEY_ID, AWS_REGION, ...), the files ~/.aws/config and
// ~/.aws/credentials, SSO, web identity (EKS), and the roles of ECS tasks and EC2
// instances.
type AWS struct {
	// Region, such as `eu-central-1`.
	Region string `json:"region,omitempty" yaml:"region,omitempty" unset:"the region in the URL or ARN of the destination, or the AWS SDK's"`

	// URL of an emulator or a VPC endpoint.
	Endpoint string `json:"endpoint,omitempty" yaml:"endpoint,omitempty" kind:"URL" unset:"AWS"`

	// Profile of `~/.aws/config` with credentials and region.
	Profile string `json:"profile,omitempty" yaml:"profile,omitempty" unset:"the AWS SDK's"`

	// Static credentials, with `secret_access_key`.
	AccessKeyID string `json:"access_key_id,omitempty" yaml:"access_key_id,omitempty" unset:"the AWS SDK's"`

	// Secret of `access_key_id`.
	SecretAccessKey Secret `json:"secret_access_key,omitzero" yaml:"secret_access_key,omitempty" unset:"the AWS SDK's"`

	// Session token, where the static credentials are temporary.
	SessionToken Secret `json:"session_token,omitzero" yaml:"session_token,omitempty"`

	// Role to assume with those credentials:
	// `arn:aws:iam::123456789012:role/notifyd`.
	AssumeRoleARN string `json:"assume_role_arn,omitempty" yaml:"assume_role_arn,omitempty"`

	// External id that the role's trust policy requires.
	ExternalID Secret `json:"external_id,omitzero" yaml:"external_id,omitempty"`

	// Name of the role's session, as CloudTrail shows it.
	RoleSessionName string `json:"role_session_name,omitempty" yaml:"role_session_name,omitempty" unset:"'notifyd'"`

	// Certificates to trust and to present, for an endpoint or proxy with its own.
	TLS *TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"the system's certificates"`

	// Longest time for one request, connecting and credentials included.
	//
	// The default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty"`
}
