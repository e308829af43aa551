package signing

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"aead.dev/minisign"
	"github.com/hashicorp/go-version"
)

// Key is a public key that signs plugins.
type Key struct{ key minisign.PublicKey }

// ParseKey reads a public key: the line RW…, or all of a file that minisign -G writes.
func ParseKey(text string) (k Key, err error) {
	if err := k.key.UnmarshalText([]byte(strings.TrimSpace(text))); err != nil {
		return Key{}, errors.New("a minisign public key is required: a line that begins with RW, as in the file minisign.pub")
	}
	return k, nil
}

// ID returns the key's 16 hex digits, as minisign shows them.
func (k Key) ID() string { return keyID(k.key.ID()) }

func keyID(id uint64) string { return fmt.Sprintf("%016X", id) }

// Policy says whose plugins this host runs.
type Policy struct {
	Keys []Key
	// Required makes the agent run only what one of the keys has signed.
	Required bool
}

// ErrSignature means that a binary has no signature of a key that this host trusts.
var ErrSignature = errors.New("no valid signature")

// Check returns ErrSignature with the reason unless a key of the policy has signed the binary, as the plugin called
// name and, if v is not nil, in the version v. It returns the version that the signature names; nil: none.
func (p Policy) Check(name string, v *version.Version, binary io.Reader, proof Proof) (*version.Version, error) {
	signed, err := p.check(name, v, binary, proof)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	return signed, nil
}

func (p Policy) check(name string, v *version.Version, binary io.Reader, proof Proof) (*version.Version, error) {
	if len(proof.Signature) == 0 {
		return nil, fmt.Errorf("it is not signed: put its signature beside it, as NAME%s (keys that count: %s)", SignatureEnd,
			p.ids())
	}
	sig, err := parse(proof.Signature)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	signed := minisign.NewReader(io.TeeReader(binary, sum))
	if proof.Sums != nil {
		if _, err := io.Copy(sum, binary); err != nil {
			return nil, err
		}
		signed = minisign.NewReader(bytes.NewReader(proof.Sums))
	}
	if _, err := io.Copy(io.Discard, signed); err != nil {
		return nil, err
	}
	if err := p.verify(signed, sig, proof.Signature); err != nil {
		return nil, err
	}
	files := []string{fileOf(sig.TrustedComment)}
	if proof.Sums != nil {
		var err error
		if files, err = filesOf(proof.Sums, hex.EncodeToString(sum.Sum(nil))); err != nil {
			return nil, err
		}
	}
	return names(files, name, v)
}

// parse reads a signature.
func parse(text []byte) (sig minisign.Signature, err error) {
	if err := sig.UnmarshalText(text); err != nil {
		return sig, errors.New("its signature is damaged: sign it again with minisign -S")
	}
	if sig.Algorithm != minisign.HashEdDSA {
		return sig, errors.New("its signature is of minisign's old form: sign it again without -l, by minisign 0.10 or later")
	}
	return sig, nil
}

// Signed returns which of the keys has signed a file, and the signature's trusted comment; else ErrSignature with the
// reason.
func Signed(keys []Key, content, signature []byte) (by Key, comment string, err error) {
	sig, err := parse(signature)
	if err != nil {
		return by, "", fmt.Errorf("%w: %w", ErrSignature, err)
	}
	for _, k := range keys {
		if minisign.Verify(k.key, content, signature) {
			return k, sig.TrustedComment, nil
		}
	}
	return by, "", fmt.Errorf("%w: the file or its signature of key %s was changed, or it is not of a given key (%s)",
		ErrSignature, keyID(sig.KeyID), Policy{Keys: keys}.ids())
}

// verify checks what has been read against the key that the signature names.
func (p Policy) verify(read *minisign.Reader, sig minisign.Signature, text []byte) error {
	known := false
	for _, k := range p.Keys {
		if k.key.ID() != sig.KeyID {
			continue
		}
		known = true
		if read.Verify(k.key, text) {
			return nil
		}
	}
	if known {
		return fmt.Errorf("the signature of key %s is of another file, or was changed: fetch both files again",
			keyID(sig.KeyID))
	}
	return fmt.Errorf("it is signed with key %s, which is not one of the agent's (%s): add it to plugin_signing if you trust it",
		keyID(sig.KeyID), p.ids())
}

func (p Policy) ids() string {
	if len(p.Keys) == 0 {
		return "none"
	}
	var ids []string
	for _, k := range p.Keys {
		ids = append(ids, k.ID())
	}
	return strings.Join(ids, ", ")
}

// fileOf returns the file that a trusted comment names: minisign writes file:NAME, its Go port filename:NAME.
func fileOf(comment string) string {
	for _, field := range strings.Split(comment, "\t") {
		for _, key := range []string{"file:", "filename:"} {
			if file, ok := strings.CutPrefix(field, key); ok {
				return file
			}
		}
	}
	return ""
}

// filesOf returns the files with a checksum.
func filesOf(text []byte, sha string) (files []string, err error) {
	sums, err := ParseSums(text)
	if err != nil {
		return nil, err
	}
	for _, s := range sums {
		if s.SHA256 == sha {
			files = append(files, s.File)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the signed SHA256SUMS does not have its checksum, sha256:%s: fetch both again", sha)
	}
	return files, nil
}

// names checks that one of the files that a signature names is of the plugin and the version. If the signer wrote no
// name, it is of any.
func names(files []string, name string, v *version.Version) (*version.Version, error) {
	for _, file := range files {
		a := ParseAsset(file)
		if file != "" && a.Name != name {
			continue
		}
		if a.Version != nil && v != nil && a.Version.Compare(v) != 0 {
			continue
		}
		return a.Version, nil
	}
	is := name
	if v != nil {
		is += " " + v.String()
	}
	return nil, fmt.Errorf("the signature is of %s, not of %s: give the file the name that was signed, or sign it by its own",
		strings.Join(files, ", "), is)
}
