package tokens

// TokenFile returns the file that a configuration of the plugin names for the token of a Consul; empty: none.
func TokenFile(config []byte, consul string) (string, error) {
	c, err := parseConfig(config)
	return c.tokenFiles[consul], err
}
