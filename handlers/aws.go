package handlers

import "time"

// AWS holds the settings by which a destination connects to AWS. Credentials and
// region that are not set here come from the sources of the AWS SDK for Go: the
// environment (AWS_ACCESS_KEY_ID, AWS_REGION, ...), the files ~/.aws/config and
// ~/.aws/credentials, SSO, web identity (EKS), and the roles of ECS tasks and EC2
// instances.
type AWS struct {
	// Region is the region of the destination; the default is the region in its URL or
	// ARN, or the one that the SDK finds.
	Region string `json:"region,omitempty" yaml:"region,omitempty" jsonschema_description:"Region, such as 'eu-central-1'." unset:"the region in the URL or ARN of the destination, or the AWS SDK's"`
	// Endpoint is the URL of the service, in place of AWS: an emulator or a VPC endpoint.
	Endpoint string `json:"endpoint,omitempty" yaml:"endpoint,omitempty" jsonschema_description:"URL of an emulator or a VPC endpoint." kind:"URL" unset:"AWS"`
	// Profile is one of ~/.aws/config and ~/.aws/credentials.
	Profile string `json:"profile,omitempty" yaml:"profile,omitempty" jsonschema_description:"Profile of '~/.aws/config' with credentials and region." unset:"the AWS SDK's"`
	// AccessKeyID and SecretAccessKey are static credentials. Set both or none.
	// [NewSecret] makes the SecretAccessKey.
	AccessKeyID     string `json:"access_key_id,omitempty" yaml:"access_key_id,omitempty" jsonschema_description:"Static credentials, with 'secret_access_key'." unset:"the AWS SDK's"`
	SecretAccessKey Secret `json:"secret_access_key,omitzero" yaml:"secret_access_key,omitempty" jsonschema_description:"Secret of 'access_key_id'." unset:"the AWS SDK's"`
	// SessionToken belongs to static credentials that are temporary. [NewSecret] makes the SessionToken.
	SessionToken Secret `json:"session_token,omitzero" yaml:"session_token,omitempty" jsonschema_description:"Session token, where the static credentials are temporary."`
	// AssumeRoleARN is a role to take on with these credentials.
	AssumeRoleARN string `json:"assume_role_arn,omitempty" yaml:"assume_role_arn,omitempty" jsonschema_description:"Role to assume with those credentials: 'arn:aws:iam::123456789012:role/notifyd'."`
	// ExternalID is the external id that the trust policy of the role may ask for.
	// [NewSecret] makes the ExternalID.
	ExternalID Secret `json:"external_id,omitzero" yaml:"external_id,omitempty" jsonschema_description:"External id that the role's trust policy requires."`
	// RoleSessionName is seen in CloudTrail; the default is "notifyd".
	RoleSessionName string `json:"role_session_name,omitempty" yaml:"role_session_name,omitempty" jsonschema_description:"Name of the role's session, as CloudTrail shows it." unset:"'notifyd'"`
	// TLS is for an Endpoint with a private certificate; nil trusts the
	// system's authorities.
	TLS *TLS `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Certificates to trust and to present, for an endpoint or proxy with its own." unset:"the system's certificates"`
	// RequestTimeout bounds one request, connecting and credentials included. The
	// default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty" jsonschema_description:"Longest time for one request, connecting and credentials included."`
}
