package install

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/host/internal/system/machine"
	"github.com/pannier/pannier/host/internal/system/signing"
)

// check checks a plugin's file before anything of it is run. It returns the version that was signed; nil: none.
func (i *installation) check(path, sha string, f file, proof signing.Proof) (*version.Version, error) {
	if err := i.checkSum(sha); err != nil {
		return nil, err
	}
	binary, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer binary.Close()
	if err := checkProgram(binary, i.Arch); err != nil {
		return nil, err
	}
	if len(i.Signing.Keys) == 0 || !i.Signing.Required && len(proof.Signature) == 0 {
		return nil, nil
	}
	return i.Signing.Check(f.asset.Name, f.version, binary, proof)
}

// checkSum checks the sum of the source's file against the one that is wanted.
func (i *installation) checkSum(sha string) error {
	want := strings.TrimPrefix(strings.ToLower(i.SHA256), "sha256:")
	if want != "" && sha != want {
		return fmt.Errorf("it has sha256:%s, and sha256:%s is wanted", sha, want)
	}
	return nil
}

// checkProgram checks that a file is a program for an architecture, or a script. Whether it is complete is checked when
// it is copied to be started.
func checkProgram(r io.ReaderAt, arch string) error {
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := r.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case string(magic[:2]) == "#!":
		return nil
	case string(magic) != elf.ELFMAG:
		return errors.New("it is neither a Linux program nor a script")
	}
	return machine.Check(r, arch)
}
