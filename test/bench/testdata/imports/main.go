// Command imports does what a hello world does, and imports what a client must that has commands, reads specs and
// calls the API.
package main

import (
	"fmt"

	_ "github.com/hashicorp/hcl/v2/hclsyntax"
	_ "github.com/hashicorp/hcl/v2/json"
	_ "github.com/spf13/cobra"

	_ "github.com/pannier/pannier/sdk/api"
)

func main() { fmt.Println("hello") }
