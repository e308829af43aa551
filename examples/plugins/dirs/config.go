package main

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
)

// config is the body of the agent's plugin "dirs" { config { } } block.
type config struct {
	Root string `json:"root" doc:"the folder of the volumes of the driver dirs; none: csi_driver blocks name folders"`
	Mode string `json:"mode" default:"0755" doc:"the mode of the directories that it makes, in octal"`

	mode fs.FileMode
}

// Validate reads what the keys mean.
func (c *config) Validate() error {
	if c.Root != "" && (!filepath.IsAbs(c.Root) || filepath.Clean(c.Root) != c.Root) {
		return fmt.Errorf("root: %q is not an absolute path without /../ and a slash at its end", c.Root)
	}
	mode, err := strconv.ParseUint(c.Mode, 8, 32)
	if err != nil || mode > 0o777 {
		return fmt.Errorf("mode: %q is not an octal mode such as 0755", c.Mode)
	}
	c.mode = fs.FileMode(mode)
	return nil
}
