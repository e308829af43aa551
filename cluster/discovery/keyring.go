package discovery

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/pannier/pannier/internal/errcode"
)

// ErrNotEncrypted means that gossip is not encrypted, so there is no keyring.
var ErrNotEncrypted = errcode.FailedPrecondition.New("gossip is not encrypted: start the agents with `encrypt`")

// Keys is what the members know of the keys of gossip. The keys themselves are secret.
type Keys struct {
	// Members is how many agents were asked.
	Members int
	// Keys is how many of them have each key.
	Keys map[string]int
	// Primary is how many of them encrypt with each key.
	Primary map[string]int
}

// ListKeys asks all members for their keys.
func (d *Discovery) ListKeys() (Keys, error) { return d.keys("list keys", d.manager().ListKeys) }

// InstallKey adds a key for decryption on all members. key is base64 of 16, 24 or 32 bytes.
func (d *Discovery) InstallKey(key string) (Keys, error) {
	if _, err := decodeKey(key); err != nil {
		return Keys{}, err
	}
	return d.keys("install a key", func() (*serf.KeyResponse, error) { return d.manager().InstallKey(key) })
}

// UseKey makes all members encrypt with an installed key.
func (d *Discovery) UseKey(key string) (Keys, error) {
	return d.keys("use a key", func() (*serf.KeyResponse, error) { return d.manager().UseKey(key) })
}

// RemoveKey removes a key from all members. The key in use is refused.
func (d *Discovery) RemoveKey(key string) (Keys, error) {
	return d.keys("remove a key", func() (*serf.KeyResponse, error) { return d.manager().RemoveKey(key) })
}

func (d *Discovery) manager() *serf.KeyManager { return d.serf.KeyManager() }

// keys runs one operation of the keyring. The error names the members that failed.
func (d *Discovery) keys(what string, do func() (*serf.KeyResponse, error)) (Keys, error) {
	if !d.serf.EncryptionEnabled() {
		return Keys{}, fmt.Errorf("%s: %w", what, ErrNotEncrypted)
	}
	r, err := do()
	if r == nil {
		return Keys{}, fmt.Errorf("%s: %w", what, err)
	}
	keys := Keys{Members: r.NumNodes, Keys: r.Keys, Primary: r.PrimaryKeys}
	if err == nil {
		return keys, nil
	}
	var said []string
	for name, text := range r.Messages {
		if text != "" {
			said = append(said, fmt.Sprintf("%s: %s", name, text))
		}
	}
	slices.Sort(said)
	return keys, fmt.Errorf("%s: %w: %d of %d members answered (%s); repeat it when all members are alive", what, err,
		r.NumResp, r.NumNodes, strings.Join(said, "; "))
}

// keyring reads the keys that the members last agreed on. key is the configured one, which makes the first
// keyring; later it is an additional key for decryption.
func keyring(path, key string) (*memberlist.Keyring, error) {
	keys, err := readKeys(path, key != "")
	if err != nil {
		return nil, err
	}
	if key != "" {
		k, err := decodeKey(key)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(keys, func(have []byte) bool { return string(have) == string(k) }) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("read the keyring %s: %w", path, err)
	}
	return ring, nil
}

// readKeys reads serf's keyring file: a JSON list, the primary key first. A missing one has no keys, nor has an empty
// one if there are others: serf does not sync it, so a loss of power may leave it empty.
func readKeys(path string, others bool) ([][]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 && others {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the keyring: %w", err)
	}
	var texts []string
	if err := json.Unmarshal(data, &texts); err != nil {
		return nil, fmt.Errorf("read the keyring %s: it is not a list of keys: "+
			"remove it while the agent is stopped to use `encrypt` again", path)
	}
	keys := make([][]byte, len(texts))
	for i, text := range texts {
		if keys[i], err = decodeKey(text); err != nil {
			return nil, fmt.Errorf("read the keyring %s: key %d: %w", path, i+1, err)
		}
	}
	return keys, nil
}

// decodeKey decodes a key. The error does not contain it.
func decodeKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("the encryption key is not base64: make one with `head -c 32 /dev/urandom | base64`")
	}
	if err := memberlist.ValidateKey(key); err != nil {
		return nil, fmt.Errorf("the encryption key has %d bytes, not 16, 24 or 32: "+
			"make one with `head -c 32 /dev/urandom | base64`", len(key))
	}
	return key, nil
}
