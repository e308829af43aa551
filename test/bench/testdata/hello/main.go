// Command hello is what the start of a program is compared with.
package main

import "fmt"

func main() { fmt.Println("hello") }
