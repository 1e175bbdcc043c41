_sparkstorm() {
    local line="${COMP_LINE:0:COMP_POINT}" word
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word="${words[-1]}"
    mapfile -t COMPREPLY < <(sparkstorm __complete "${words[@]:1}" 2>/dev/null)
    if [[ $word == *[:=]* ]]; then  # bash takes the part after it for the word
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[:=]}"}"}")
    fi
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _sparkstorm sparkstorm
