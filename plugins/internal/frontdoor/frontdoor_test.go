package frontdoor

import "testing"

// A name that others own may lead here (DNS rebinding).
func TestKnownHost(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8080": true, "[::1]:8080": true, "[::1]": true, "192.0.2.1": true, "localhost": true,
		"LocalHost:80": true, "Pannier.example.org": true, "pannier.example.org:443": true,
		"": false, "evil.example": false, "evil.example:80": false, "localhost.evil.example": false,
		"1.2.3.4.evil.example": false,
	} {
		if got := KnownHost(host, []string{"pannier.example.org"}); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}
