package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/xds"
)

// files are a service's files on the host.
type files struct {
	accessor         string
	token, bootstrap []byte
}

func (m *mesh) files(id string) files {
	m.t.Helper()
	s := m.service(id)
	read := func(path string) []byte {
		raw, err := os.ReadFile(path)
		if err != nil {
			m.t.Fatal(err)
		}
		return raw
	}
	return files{s.GetTokenAccessor(), read(s.GetTokenFile()), read(s.GetBootstrapFile())}
}

func (f files) equal(o files) bool {
	return f.accessor == o.accessor && bytes.Equal(f.token, o.token) && bytes.Equal(f.bootstrap, o.bootstrap)
}

// usable reports why a proxy cannot be started with a service's files.
func (m *mesh) usable(s *hostv1.ServiceStatus) error {
	b, err := xds.Read(s.GetBootstrapFile())
	if err != nil {
		return err
	}
	secret, err := os.ReadFile(s.GetTokenFile())
	if err != nil {
		return err
	}
	if xds.Token(b) != string(secret) {
		return errors.New("the bootstrap has another token than the token's file")
	}
	_, err = openStream(m.t, s.GetBootstrapFile())
	return err
}

// TestMeshOutlivesTheHost stops and then kills the agent while three workloads run. The first is left alone,
// the second's token is deleted in Consul before the first restart, and the third's files are deleted before
// each restart.
func TestMeshOutlivesTheHost(t *testing.T) {
	eachMode(t, func(t *testing.T, m *mesh) {
		now := map[string]files{}
		for _, id := range []string{"kept", "revoked", "wiped"} {
			m.Run("workload", "start", m.meshWorkload(id, sidecarService(id, "")))
			now[id] = m.files(id)
		}
		login := m.reach.AuthMethod != ""
		var lost []string // tokens that can only expire, because their secrets are lost
		for round, end := range []func(){m.Kill, m.Stop} {
			before := maps.Clone(now)
			end()
			revoked := round == 0
			if revoked {
				if _, err := m.consul.Client(m.consul.Management).ACL().TokenDelete(before["revoked"].accessor, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.RemoveAll(filepath.Join(m.SecretsDir(), "default", "wiped", "wiped")); err != nil {
				t.Fatal(err)
			}
			m.Start()
			m.Eventually("the service has a valid token", func() error {
				s := m.service("revoked")
				if s.GetTokenAccessor() == before["revoked"].accessor && revoked {
					return errors.New("it is unchanged")
				}
				return m.usable(s)
			})
			m.Eventually("the files are back", func() error { return m.usable(m.service("wiped")) })
			for id := range now {
				s := m.service(id)
				now[id] = m.files(id)
				hasMode(t, s.GetTokenFile(), 0o400, secretsUID)
				hasMode(t, s.GetBootstrapFile(), 0o400, secretsUID)
			}
			if !now["kept"].equal(before["kept"]) {
				t.Error("files that nobody touched were replaced")
			}
			if same := now["revoked"].equal(before["revoked"]); same == revoked {
				t.Errorf("the token was revoked: %t, its files are the same: %t", revoked, same)
			}
			if same := now["wiped"].equal(before["wiped"]); same == login {
				t.Errorf("the files that were wiped came back as they were: %t", same)
			}
			if login {
				lost = append(lost, before["wiped"].accessor)
			}
			if login && revoked { // the ledger keeps its record for the token's longest lifetime
				lost = append(lost, before["revoked"].accessor)
			}
			m.tokensAre(now, lost)
			if told := m.Run("events", "-recent", "1000"); revoked && !strings.Contains(told, "identity-replaced") {
				t.Errorf("no event tells of the token that was replaced:\n%s", told)
			}
		}
		for id := range now {
			m.Run("workload", "stop", id)
		}
		m.nothingInMesh(lost...)
	})
}

// tokensAre waits until Consul and the ledger have exactly the present tokens and the lost ones.
func (m *mesh) tokensAre(now map[string]files, lost []string) {
	m.t.Helper()
	var want []string
	for _, f := range now {
		want = append(want, f.accessor)
	}
	slices.Sort(want)
	m.Eventually("the tokens are the present ones", func() error {
		if have := without(slices.Collect(maps.Keys(m.siTokens())), lost); !slices.Equal(have, want) {
			return fmt.Errorf("Consul has %q, want %q", have, want)
		}
		if have := without(m.ledgerTokens(), lost); !slices.Equal(have, want) {
			return fmt.Errorf("the ledger has %q, want %q", have, want)
		}
		return nil
	})
}
