package handlers

// TLS names the authorities to trust and the certificate to present. The zero value
// trusts the authorities of the system and presents no certificate.
type TLS struct {
	// PEM certificates to trust, relative to the configuration file.
	CAFile string `json:"ca_file,omitempty" yaml:"ca_file,omitempty" kind:"path" unset:"the system's certificates"`

	// PEM certificate to present to the server, for servers that require one; with
	// `key_file`.
	CertFile string `json:"cert_file,omitempty" yaml:"cert_file,omitempty" kind:"path"`

	// PEM key that belongs to `cert_file`.
	KeyFile string `json:"key_file,omitempty" yaml:"key_file,omitempty" kind:"path"`

	// Name in the server's certificate.
	ServerName string `json:"server_name,omitempty" yaml:"server_name,omitempty" unset:"the host connected to"`
}
