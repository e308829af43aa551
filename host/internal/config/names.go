package config

import (
	"fmt"
	"regexp"
)

var validID = regexp.MustCompile(`^[a-zA-Z0-9\-_.]{1,128}$`)

// CheckID refuses an id that may not name a volume, a workload, a driver, a node
// or a namespace: ids become names of folders.
func CheckID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("is required")
	case id == "." || id == "..":
		return fmt.Errorf("%q is not allowed", id)
	case len(id) > 128:
		return fmt.Errorf("has %d characters, 128 are allowed", len(id))
	case !validID.MatchString(id):
		return fmt.Errorf("%q may have letters, digits and - _ . only", id)
	}
	return nil
}

// id checks a field that names something; problems stand at the field, or at the
// section when it is absent.
func (s *section) id(name, value string) {
	if err := CheckID(value); err != nil {
		s.fail(name, "%v", err)
	}
}
