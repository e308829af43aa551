package consul

import (
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// TestJWT creates auth methods of all kinds that Consul validates at creation.
func TestJWT(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{ACL: true})
	public := "-----BEGIN PUBLIC KEY-----\n" +
		"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgUg2R9\n" +
		"q9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==\n" +
		"-----END PUBLIC KEY-----\n"
	for name, want := range map[string]struct{ given, ttl time.Duration }{
		"hour": {0, time.Hour}, "minutes": {5 * time.Minute, 5 * time.Minute}, "endless": {-1, 0},
	} {
		c.JWT(t, JWTMethod{Name: name, Keys: []string{public}, Issuer: "me", Audience: "you", MaxTokenTTL: want.given})
		acl := c.Client(c.Management).ACL()
		method, _, err := acl.AuthMethodRead(name, nil)
		if err != nil || method.MaxTokenTTL != want.ttl || method.Config["BoundIssuer"] != "me" {
			t.Errorf("%s: got %+v, %v", name, method, err)
		}
		rules, _, err := acl.BindingRuleList(name, nil)
		if err != nil || len(rules) != 1 || rules[0].BindType != api.BindingRuleBindTypeService {
			t.Errorf("%s: got the rules %+v, %v", name, rules, err)
		}
	}
	if services := c.Services(t); len(services) != 0 {
		t.Errorf("got services %+v", services)
	}
}
