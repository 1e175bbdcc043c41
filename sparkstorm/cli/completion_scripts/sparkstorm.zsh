_sparkstorm() {
    local -a found
    # PREFIX is the part of the present word before the cursor
    found=("${(@f)$(sparkstorm __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    found=(${found:#})
    (( ${#found} )) || { _files; return; }
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
}
whence compdef > /dev/null || { autoload -Uz compinit && compinit; }
compdef _sparkstorm sparkstorm
